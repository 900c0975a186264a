/* A launch, as it is logged: driver.py has the same structure. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stdint.h>

struct launch {
    const char *name;
    const uint16_t *offsets, *sizes; /* of each parameter, as the cubin says */
    uint64_t stream, library;
    uint32_t grid[3], block[3];
    uint32_t cluster[3];
    uint32_t dynamic_shared, cooperative, dependent, n_params, n_bytes;
    int32_t carveout, device, replayed; /* `replayed`: out of a graph */
    unsigned char bytes[];              /* of the parameters, each at its offset */
};

#endif
