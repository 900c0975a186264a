/* What processes do to the memory they share, for nvshmem_bindings.py: Python has no atomics. */
#include "stub.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

EXPORT uint64_t emulation_add64(uint64_t *at, uint64_t value)
{
    return __atomic_add_fetch(at, value, __ATOMIC_SEQ_CST);
}

EXPORT uint64_t emulation_load64(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }

EXPORT void emulation_store64(uint64_t *at, uint64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

/* NVSHMEM_CMP_EQ and so on, in their order. */
static bool compare(uint64_t is, int how, uint64_t value)
{
    return how == 0 ? is == value : how == 1 ? is != value : how == 2 ? is > value
         : how == 3 ? is <= value : how == 4 ? is < value : is >= value;
}

/* Wait until the word compares so; non-zero after `limit` seconds. */
EXPORT int emulation_wait64(const uint64_t *at, int how, uint64_t value, double limit)
{
    double start = seconds();
    for (long i = 0; !compare(emulation_load64(at), how, value); i++) {
        if (i % 64 == 0 && seconds() - start > limit)
            return 1;
        if (i < 200)
            sched_yield();
        else
            usleep(i < 2000 ? 50 : 500);
    }
    return 0;
}

/* One lock for all atomics of a job: held for one operation on a few bytes. */
EXPORT int emulation_lock(uint64_t *at, double limit)
{
    double start = seconds();
    while (__atomic_exchange_n(at, 1, __ATOMIC_ACQUIRE)) {
        if (seconds() - start > limit)
            return 1;
        sched_yield();
    }
    return 0;
}

EXPORT void emulation_unlock(uint64_t *at) { __atomic_store_n(at, 0, __ATOMIC_RELEASE); }
