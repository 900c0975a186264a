#include <math.h>

enum { FEATURES = 34, CENTRES = 5 };

void cluster(int n, int rounds, const float *points, float *centres, int *membership) {
    for (int round = 0; round < rounds; round++) {
        float sums[CENTRES * FEATURES] = {0};
        int counts[CENTRES] = {0};
#pragma omp parallel for reduction(+ : sums[:CENTRES * FEATURES], counts[:CENTRES])
        for (int i = 0; i < n; i++) {
            const float *point = points + (long)i * FEATURES;
            int nearest = 0;
            float least = INFINITY;
            for (int c = 0; c < CENTRES; c++) {
                float distance = 0;
#pragma omp simd reduction(+ : distance)
                for (int k = 0; k < FEATURES; k++) {
                    float difference = point[k] - centres[c * FEATURES + k];
                    distance += difference * difference;
                }
                if (distance < least) {
                    nearest = c;
                    least = distance;
                }
            }
            membership[i] = nearest;
            counts[nearest]++;
            for (int k = 0; k < FEATURES; k++)
                sums[nearest * FEATURES + k] += point[k];
        }
        for (int c = 0; c < CENTRES; c++)
            if (counts[c] > 0)
                for (int k = 0; k < FEATURES; k++)
                    centres[c * FEATURES + k] = sums[c * FEATURES + k] / counts[c];
    }
}
