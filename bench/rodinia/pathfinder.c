static inline int smaller(int a, int b) { return a < b ? a : b; }

void find(int rows, int columns, const int *wall, int *costs, int *other, int *result) {
    int *source = costs, *target = other;
    for (int row = 1; row < rows; row++) {
        const int *here = wall + (long)row * columns;
        if (row == rows - 1)
            target = result;
#pragma omp parallel for
        for (int x = 0; x < columns; x++) {
            int shortest = source[x];
            if (x > 0)
                shortest = smaller(shortest, source[x - 1]);
            if (x < columns - 1)
                shortest = smaller(shortest, source[x + 1]);
            target[x] = shortest + here[x];
        }
        int *swap = source;
        source = target;
        target = swap;
    }
}
