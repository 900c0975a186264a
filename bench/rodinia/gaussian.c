void eliminate(int n, float *a, float *b, float *m) {
    for (int t = 0; t < n - 1; t++) {
        const float *pivot = a + (long)t * n;
#pragma omp parallel for
        for (int i = t + 1; i < n; i++)
            m[(long)i * n + t] = a[(long)i * n + t] / pivot[t];
#pragma omp parallel for
        for (int i = t + 1; i < n; i++) {
            float *row = a + (long)i * n, by = m[(long)i * n + t];
            for (int j = t; j < n; j++)
                row[j] -= by * pivot[j];
            b[i] -= by * b[t];
        }
    }
}
