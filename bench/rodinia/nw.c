enum { TILE = 16 };

static inline int larger(int a, int b) { return a > b ? a : b; }

void align(int n, int *scores, const int *similar, int penalty) {
    int blocks = n / TILE;
    long wide = n + 1;
    for (int diagonal = 0; diagonal < 2 * blocks - 1; diagonal++) {
        int first = larger(0, diagonal - blocks + 1);
        int last = diagonal < blocks ? diagonal : blocks - 1;
#pragma omp parallel for
        for (int block = first; block <= last; block++) {
            int top = block * TILE, left = (diagonal - block) * TILE;
            int tile[TILE + 1][TILE + 1], likeness[TILE][TILE];
            for (int i = 0; i < TILE; i++)
#pragma omp simd
                for (int j = 0; j < TILE; j++)
                    likeness[i][j] = similar[(long)(top + i) * n + left + j];
            for (int i = 0; i <= TILE; i++) {
                tile[0][i] = scores[top * wide + left + i];
                tile[i][0] = scores[(top + i) * wide + left];
            }
            for (int i = 1; i <= TILE; i++)
                for (int j = 1; j <= TILE; j++)
                    tile[i][j] = larger(tile[i - 1][j - 1] + likeness[i - 1][j - 1],
                                        larger(tile[i][j - 1], tile[i - 1][j]) - penalty);
            for (int i = 1; i <= TILE; i++)
#pragma omp simd
                for (int j = 1; j <= TILE; j++)
                    scores[(top + i) * wide + left + j] = tile[i][j];
        }
    }
}
