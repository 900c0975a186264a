#include <stdbool.h>

enum { FEATURES = 32, SLOTS = 64 };

static inline float distance(const float *a, const float *b) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int k = 0; k < FEATURES; k++)
        sum += (a[k] - b[k]) * (a[k] - b[k]);
    return sum;
}

void search(int n, int candidates, const int *which, double price, const float *points,
            float *costs, int *assigned, bool *switches) {
    bool is_open[SLOTS] = {true};
    for (int slot = 1; slot <= candidates; slot++) {
        const float *centre = points + (long)which[slot - 1] * FEATURES;
        double gains[SLOTS] = {0};
#pragma omp parallel for reduction(+ : gains[:SLOTS])
        for (int i = 0; i < n; i++) {
            float gain = costs[i] - distance(points + (long)i * FEATURES, centre);
            switches[i] = gain > 0;
            gains[gain > 0 ? SLOTS - 1 : assigned[i]] += gain;
        }
        bool closing[SLOTS] = {false};
        double total = gains[SLOTS - 1] - price;
        for (int k = 0; k < SLOTS - 1; k++) {
            closing[k] = is_open[k] && gains[k] + price > 0;
            if (closing[k])
                total += gains[k] + price;
        }
        if (total <= 0)
            continue;
        for (int k = 0; k < SLOTS; k++)
            is_open[k] = is_open[k] && !closing[k];
        is_open[slot] = true;
#pragma omp parallel for
        for (int i = 0; i < n; i++)
            if (switches[i] || closing[assigned[i]]) {
                costs[i] = distance(points + (long)i * FEATURES, centre);
                assigned[i] = slot;
            }
    }
}
