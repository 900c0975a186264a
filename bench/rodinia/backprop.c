#include <math.h>

enum { HIDDEN = 16 };
static const float RATE = 0.3f, MOMENTUM = 0.3f;

void train(int n, const float *x, float *weights, float *before, const float *output) {
    float sums[HIDDEN] = {0}, delta[HIDDEN], total = 0;
#pragma omp parallel for reduction(+ : sums[:HIDDEN])
    for (int i = 0; i < n; i++)
        for (int j = 0; j < HIDDEN; j++)
            sums[j] += weights[(long)i * HIDDEN + j] * x[i];
    for (int j = 0; j < HIDDEN; j++) {
        sums[j] = 1 / (1 + expf(-sums[j]));
        total += sums[j] * output[j];
    }
    float answer = 1 / (1 + expf(-total));
    float error = answer * (1 - answer) * (1 - answer);
    for (int j = 0; j < HIDDEN; j++)
        delta[j] = sums[j] * (1 - sums[j]) * output[j] * error;
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        for (int j = 0; j < HIDDEN; j++) {
            long k = (long)i * HIDDEN + j;
            float change = RATE * delta[j] * x[i] + MOMENTUM * before[k];
            weights[k] += change;
            before[k] = change;
        }
}
