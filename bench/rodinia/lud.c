enum { TILE = 16 };

static void diagonal(int n, float *m, int first) {
    float *a = m + (long)first * n + first;
    for (int i = 0; i < TILE; i++)
        for (int j = i + 1; j < TILE; j++) {
            a[(long)j * n + i] /= a[(long)i * n + i];
            for (int k = i + 1; k < TILE; k++)
                a[(long)j * n + k] -= a[(long)j * n + i] * a[(long)i * n + k];
        }
}

void decompose(int n, float *m) {
    for (int first = 0; first < n; first += TILE) {
        diagonal(n, m, first);
        int rest = (n - first) / TILE - 1;
        float pivot[TILE][TILE];
        for (int i = 0; i < TILE; i++)
            for (int j = 0; j < TILE; j++)
                pivot[i][j] = m[(long)(first + i) * n + first + j];
#pragma omp parallel for
        for (int block = 0; block < rest; block++) {
            int other = first + (block + 1) * TILE;
            float *row = m + (long)first * n + other, *column = m + (long)other * n + first;
            for (int i = 1; i < TILE; i++)
                for (int k = 0; k < i; k++)
#pragma omp simd
                    for (int t = 0; t < TILE; t++)
                        row[(long)i * n + t] -= pivot[i][k] * row[(long)k * n + t];
            for (int t = 0; t < TILE; t++)
                for (int i = 0; i < TILE; i++) {
                    float sum = column[(long)t * n + i];
                    for (int k = 0; k < i; k++)
                        sum -= column[(long)t * n + k] * pivot[k][i];
                    column[(long)t * n + i] = sum / pivot[i][i];
                }
        }
#pragma omp parallel for
        for (int block = 0; block < rest * rest; block++) {
            int y = first + (block / rest + 1) * TILE, x = first + (block % rest + 1) * TILE;
            float row[TILE][TILE], column[TILE][TILE];
            for (int i = 0; i < TILE; i++)
#pragma omp simd
                for (int j = 0; j < TILE; j++) {
                    row[i][j] = m[(long)(first + i) * n + x + j];
                    column[i][j] = m[(long)(y + i) * n + first + j];
                }
            for (int i = 0; i < TILE; i++) {
                float sums[TILE] = {0};
                for (int k = 0; k < TILE; k++)
#pragma omp simd
                    for (int j = 0; j < TILE; j++)
                        sums[j] += column[i][k] * row[k][j];
#pragma omp simd
                for (int j = 0; j < TILE; j++)
                    m[(long)(y + i) * n + x + j] -= sums[j];
            }
        }
    }
}
