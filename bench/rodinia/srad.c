void diffuse(int n, int steps, float rate, float *image, float *c, float *north, float *south,
             float *west, float *east) {
    for (int step = 0; step < steps; step++) {
        double total = 0, squares = 0;
#pragma omp parallel for reduction(+ : total, squares)
        for (int y = 0; y < n; y++) {
            float of_row = 0, squares_of_row = 0;
#pragma omp simd reduction(+ : of_row, squares_of_row)
            for (int x = 0; x < n; x++) {
                float value = image[(long)y * n + x];
                of_row += value;
                squares_of_row += value * value;
            }
            total += of_row;
            squares += squares_of_row;
        }
        double mean = total / ((double)n * n);
        float speckle = (squares / ((double)n * n) - mean * mean) / (mean * mean);
#pragma omp parallel for
        for (int y = 0; y < n; y++) {
            const float *row = image + (long)y * n;
            const float *above = y > 0 ? row - n : row, *below = y < n - 1 ? row + n : row;
            for (int x = 0; x < n; x++) {
                long k = (long)y * n + x;
                float here = row[x];
                float to_north = above[x] - here, to_south = below[x] - here;
                float to_west = row[x > 0 ? x - 1 : 0] - here;
                float to_east = row[x < n - 1 ? x + 1 : n - 1] - here;
                float gradient = (to_north * to_north + to_south * to_south + to_west * to_west +
                                  to_east * to_east) / (here * here);
                float laplace = (to_north + to_south + to_west + to_east) / here;
                float numerator = 0.5f * gradient - 0.0625f * (laplace * laplace);
                float denominator = 1 + 0.25f * laplace;
                float q = numerator / (denominator * denominator);
                float value = 1 / (1 + (q - speckle) / (speckle * (1 + speckle)));
                north[k] = to_north;
                south[k] = to_south;
                west[k] = to_west;
                east[k] = to_east;
                c[k] = value < 0 ? 0 : value > 1 ? 1 : value;
            }
        }
#pragma omp parallel for
        for (int y = 0; y < n; y++) {
            const float *row = c + (long)y * n, *below = y < n - 1 ? row + n : row;
            for (int x = 0; x < n; x++) {
                long k = (long)y * n + x;
                float change = row[x] * north[k] + below[x] * south[k] + row[x] * west[k] +
                               row[x < n - 1 ? x + 1 : n - 1] * east[k];
                image[k] += 0.25f * rate * change;
            }
        }
    }
}
