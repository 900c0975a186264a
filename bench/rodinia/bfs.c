#include <stdbool.h>

void search(int n, const int *starts, const int *degrees, const int *edges, bool *mask,
            bool *updating, bool *visited, int *cost) {
    bool go_on = true;
    while (go_on) {
        go_on = false;
#pragma omp parallel for
        for (int i = 0; i < n; i++)
            if (mask[i]) {
                mask[i] = false;
                for (int k = starts[i]; k < starts[i] + degrees[i]; k++) {
                    int neighbour = edges[k];
                    if (!visited[neighbour]) {
                        cost[neighbour] = cost[i] + 1;
                        updating[neighbour] = true;
                    }
                }
            }
#pragma omp parallel for reduction(|| : go_on)
        for (int i = 0; i < n; i++)
            if (updating[i]) {
                mask[i] = true;
                visited[i] = true;
                updating[i] = false;
                go_on = true;
            }
    }
}
