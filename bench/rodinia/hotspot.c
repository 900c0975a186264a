static inline float next(float here, float power, float north, float south, float west, float east,
                         float rx, float ry, float rz, float cap, float ambient) {
    return here + cap * (power + (south + north - 2 * here) * ry + (east + west - 2 * here) * rx +
                         (ambient - here) * rz);
}

void hotspot(int n, int steps, const float *power, float *temperature, float *other, float *result,
             float rx, float ry, float rz, float cap, float ambient) {
    float *source = temperature, *target = other;
    for (int step = 0; step < steps; step++) {
        if (step == steps - 1)
            target = result;
#pragma omp parallel for
        for (int y = 0; y < n; y++) {
            const float *row = source + (long)y * n, *watts = power + (long)y * n;
            const float *above = y > 0 ? row - n : row, *below = y < n - 1 ? row + n : row;
            float *out = target + (long)y * n;
            out[0] = next(row[0], watts[0], above[0], below[0], row[0], row[1], rx, ry, rz, cap,
                          ambient);
            for (int x = 1; x < n - 1; x++)
                out[x] = next(row[x], watts[x], above[x], below[x], row[x - 1], row[x + 1], rx, ry,
                              rz, cap, ambient);
            out[n - 1] = next(row[n - 1], watts[n - 1], above[n - 1], below[n - 1], row[n - 2],
                              row[n - 1], rx, ry, rz, cap, ambient);
        }
        float *swap = source;
        source = target;
        target = swap;
    }
}
