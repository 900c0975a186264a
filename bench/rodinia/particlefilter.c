#include <math.h>

static const double BACKGROUND = 100, OBJECT = 228;

static inline double uniform(long *seed) {
    *seed = (1103515245 * *seed + 12345) % 2147483647;
    return *seed / 2147483647.0;
}

static inline double normal(long *seed) {
    double u = uniform(seed), v = uniform(seed);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static inline int within(int value, int side) {
    return value < 0 ? 0 : value >= side ? side - 1 : value;
}

void track(int n, int frames, int side, int points, const int *video, const int *disk, long *seeds,
           double *x, double *y, double *moved_x, double *moved_y, double *weights, double *sums,
           double *estimates) {
    for (int frame = 0; frame < frames; frame++) {
        const int *image = video + (long)frame * side * side;
        double sum_x = 0, sum_y = 0, total = 0;
#pragma omp parallel for reduction(+ : sum_x, sum_y, total)
        for (int i = 0; i < n; i++) {
            double at_x = x[i] + 1 + 5 * normal(seeds + i);
            double at_y = y[i] - 2 + 2 * normal(seeds + i);
            double likelihood = 0;
            for (int k = 0; k < points; k++) {
                int row = within((int)floor(at_y + 0.5) + disk[2 * k], side);
                int column = within((int)floor(at_x + 0.5) + disk[2 * k + 1], side);
                double pixel = image[row * side + column];
                likelihood += ((pixel - BACKGROUND) * (pixel - BACKGROUND) -
                               (pixel - OBJECT) * (pixel - OBJECT)) / 50;
            }
            double weight = exp(likelihood / points);
            moved_x[i] = at_x;
            moved_y[i] = at_y;
            weights[i] = weight;
            sum_x += weight * at_x;
            sum_y += weight * at_y;
            total += weight;
        }
        estimates[3 * frame] = sum_x;
        estimates[3 * frame + 1] = sum_y;
        estimates[3 * frame + 2] = total;
        double sum = 0;
        for (int i = 0; i < n; i++)
            sums[i] = sum += weights[i];
#pragma omp parallel for
        for (int i = 0; i < n; i++) {
            double wanted = (i + 0.5) / n * sums[n - 1];
            int low = 0, high = n - 1;
            while (low < high) {
                int middle = (low + high) / 2;
                if (sums[middle] < wanted)
                    low = middle + 1;
                else
                    high = middle;
            }
            x[i] = moved_x[low];
            y[i] = moved_y[low];
        }
    }
}
