/* OSHMEM's side, in C. Started by __main__.py; the arguments are explained in measure.py. */

#include <shmem.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LARGE = 64 << 20, ITEM = 4, SETS = 2 };

static int me, n;
static double round_seconds, *shared;
static int rounds;
static long *cell;
static float *src, *dst;
static size_t count; /* elements of src, of one PE's block for alltoall */

/* Used in turn, so that no PE can still be in the call before last that used the same ones. */
static long *sync_array[SETS];
static float *work[SETS];

static long larger(long a, long b) { return a > b ? a : b; }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* Seconds from one barrier to the next on PE 0; known to all. */
static double one_round(void (*run)(long), long reps)
{
    shmem_barrier_all();
    double began = now();
    run(reps);
    shmem_barrier_all();
    double seconds = now() - began;
    for (int pe = 0; me == 0 && pe < n; pe++)
        shmem_double_p(shared, seconds, pe);
    shmem_barrier_all();
    return *shared;
}

/* Print what one of `reps` operations takes in `run(reps)`, the best mean of the rounds. */
static void measure(const char *what, long nbytes, void (*run)(long))
{
    long reps = 1;
    one_round(run, reps);
    while (one_round(run, reps) < round_seconds)
        reps *= 2;
    double best = one_round(run, reps);
    for (int k = 1; k < rounds; k++) {
        double seconds = one_round(run, reps);
        best = seconds < best ? seconds : best;
    }
    if (me == 0) {
        printf("{\"what\": \"%s\", \"n_pes\": %d, \"bytes\": %ld, \"seconds\": %.9e}\n",
               what, n, nbytes, best / reps);
        fflush(stdout);
    }
}

/* --- the operations */

static void p(long reps)
{
    if (me == 0) {
        for (long i = 0; i < reps; i++)
            shmem_long_p(cell, i, 1);
        shmem_quiet();
    }
}

static void atomic_add(long reps)
{
    if (me == 0) {
        for (long i = 0; i < reps; i++)
            shmem_long_atomic_add(cell, 1, 1);
        shmem_quiet();
    }
}

static void atomic_fetch_add(long reps)
{
    if (me == 0) {
        long total = 0;
        for (long i = 0; i < reps; i++)
            total += shmem_long_atomic_fetch_add(cell, 1, 1);
        *cell = total;
    }
}

static void ping_pong(long reps)
{
    for (long i = 1; i <= reps; i++) {
        if (i % 2 == me)
            shmem_long_p(cell, i, 1 - me);
        else
            shmem_long_wait_until(cell, SHMEM_CMP_EQ, i);
    }
    *cell = 0;
}

static void put(long reps)
{
    if (me == 0) {
        for (long i = 0; i < reps; i++)
            shmem_putmem(dst, src, LARGE, 1);
        shmem_quiet();
    }
}

static void barrier_all(long reps)
{
    for (long i = 0; i < reps; i++)
        shmem_barrier_all();
}

static void allreduce(long reps)
{
    for (long i = 0; i < reps; i++)
        shmem_float_sum_to_all(dst, src, count, 0, 0, n, work[i % SETS], sync_array[i % SETS]);
}

static void alltoall(long reps)
{
    for (long i = 0; i < reps; i++)
        shmem_alltoall32(dst, src, count / n, 0, 0, n, sync_array[i % SETS]);
}

static void fcollect(long reps)
{
    for (long i = 0; i < reps; i++)
        shmem_fcollect32(dst, src, count, 0, 0, n, sync_array[i % SETS]);
}

/* --- the collectives' data: element k of PE pe's src, and of the dst that has to come of it */

static float source(int pe, size_t k) { return 1000 * (pe + 1) + k % 97; }

static float sum_of_all(size_t k)
{
    float sum = 0;
    for (int pe = 0; pe < n; pe++)
        sum += source(pe, k);
    return sum;
}

static float my_block_of_each(size_t k)
{
    size_t block = count / n;
    return source(k / block, me * block + k % block);
}

static float all_of_each(size_t k) { return source(k / count, k % count); }

static void collective(const char *what, void (*run)(long), float (*wanted)(size_t), long size)
{
    /* Bytes are those of each PE's whole src, and for fcollect of each PE's whole dst. Where PEs
       have blocks, these are of whole elements, one at least. */
    long blocks = run == allreduce ? 1 : n;
    size_t whole = larger(size / (ITEM * blocks), 1) * blocks;
    long nbytes = whole * ITEM;
    count = run == fcollect ? whole / n : whole;
    for (size_t k = 0; k < count; k++)
        src[k] = source(me, k);
    for (size_t k = 0; k < whole; k++)
        dst[k] = -1;
    shmem_barrier_all();
    run(1);
    for (size_t k = 0; k < whole; k++) {
        if (dst[k] != wanted(k)) {
            fprintf(stderr, "%s of %ld bytes, PE %d: element %zu is %g, not %g\n",
                    what, nbytes, me, k, dst[k], wanted(k));
            shmem_global_exit(1);
        }
    }
    measure(what, nbytes, run);
}

static void *symmetric(size_t nbytes)
{
    void *memory = shmem_malloc(nbytes);
    if (memory == NULL) {
        fprintf(stderr, "the symmetric heap has no %zu bytes: set SHMEM_SYMMETRIC_SIZE\n", nbytes);
        shmem_global_exit(1);
    }
    return memset(memory, 0, nbytes);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s SECONDS ROUNDS SIZES...\n", argv[0]);
        return 2;
    }
    round_seconds = atof(argv[1]);
    rounds = atoi(argv[2]);
    shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();

    shared = symmetric(sizeof *shared);
    cell = symmetric(sizeof *cell);
    src = symmetric(LARGE);
    dst = symmetric(LARGE);
    long words = larger(SHMEM_ALLTOALL_SYNC_SIZE, SHMEM_COLLECT_SYNC_SIZE);
    words = larger(words, SHMEM_REDUCE_SYNC_SIZE);
    for (int s = 0; s < SETS; s++) {
        sync_array[s] = symmetric(words * sizeof(long));
        for (long k = 0; k < words; k++)
            sync_array[s][k] = SHMEM_SYNC_VALUE;
        work[s] = symmetric(ITEM * larger(LARGE / ITEM / 2 + 1, SHMEM_REDUCE_MIN_WRKDATA_SIZE));
    }
    shmem_barrier_all();

    if (n == 2) {
        measure("put", 8, p);
        measure("atomic add", 8, atomic_add);
        measure("atomic fetch-add", 8, atomic_fetch_add);
        *cell = 0;
        measure("put and wait, one way", 8, ping_pong);
        measure("put", LARGE, put);
    }
    measure("barrier", 0, barrier_all);
    for (int k = 3; k < argc; k++)
        collective("allreduce", allreduce, sum_of_all, atol(argv[k]));
    for (int k = 3; k < argc; k++)
        collective("alltoall", alltoall, my_block_of_each, atol(argv[k]));
    for (int k = 3; k < argc; k++)
        collective("fcollect", fcollect, all_of_each, atol(argv[k]));
    shmem_finalize();
    return 0;
}
