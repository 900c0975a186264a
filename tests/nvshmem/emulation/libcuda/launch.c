/* Launches: checked as CUDA checks them, written into a log, shown to a callback. */
#define _GNU_SOURCE
#include "stub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "launch.h"

static struct launch **launches;
static int n_launches;
static int (*callback)(const struct launch *);
static bool do_nothing; /* what calls launches is being timed */

static void __attribute__((constructor)) look_at_environment(void)
{
    const char *launches = getenv("EMULATION_LAUNCHES");
    do_nothing = launches && !strcmp(launches, "0");
}

EXPORT int emulation_launch_count(void) { return n_launches; }

EXPORT const struct launch *emulation_launch(int i)
{
    return i >= 0 && i < n_launches ? launches[i] : NULL;
}

EXPORT void emulation_clear_launches(void)
{
    lock();
    while (n_launches)
        free(launches[--n_launches]);
    unlock();
}

/* Called at each launch, when it would run. Returns non-zero for a kernel that failed. */
EXPORT void emulation_set_callback(int (*function)(const struct launch *)) { callback = function; }

static void log_launch(const struct launch *launch)
{
    size_t size = sizeof *launch + launch->n_bytes;
    lock();
    launches = realloc(launches, (n_launches + 1) * sizeof *launches);
    launches[n_launches] = memcpy(malloc(size), launch, size);
    n_launches++;
    unlock();
}

static CUresult run_launch(struct op *op, bool dry)
{
    if (dry)
        return CUDA_SUCCESS;
    op->launch->stream = (uintptr_t)op->stream;
    log_launch(op->launch);
    if (callback && callback(op->launch))
        op->stream->ctx->sticky = CUDA_ERROR_LAUNCH_FAILED;
    return CUDA_SUCCESS;
}

/* Memory that a wrong count of parameters leads to may not be there: ask the kernel to read it. */
static bool peek(void *to, const void *from, size_t n)
{
    struct iovec local = {to, n}, remote = {(void *)from, n};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static CUresult read_params(struct launch *launch, const struct CUkern_st *kernel, void **params, void **extra)
{
    if (extra) {
        void *buffer = NULL;
        size_t *size = NULL;
        for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
                buffer = extra[i + 1];
            if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
                size = extra[i + 1];
        }
        REQUIRE(buffer && size && *size >= launch->n_bytes, INVALID_VALUE);
        memcpy(launch->bytes, buffer, launch->n_bytes);
        return CUDA_SUCCESS;
    }
    REQUIRE(params || !kernel->n_params, INVALID_VALUE);
    for (unsigned i = 0; i < kernel->n_params; i++) {
        void *value;
        REQUIRE(peek(&value, params + i, sizeof value), INVALID_VALUE);
        REQUIRE(value && peek(launch->bytes + kernel->offsets[i], value, kernel->sizes[i]), INVALID_VALUE);
    }
    return CUDA_SUCCESS;
}

/* What the attributes of a launch say. */
struct asked {
    bool cooperative, dependent;
    unsigned cluster[3]; /* zeros: there are none */
};

static CUresult read_attributes(struct asked *asked, const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttributeValue *value = &config->attrs[i].value;
        switch (config->attrs[i].id) {
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            asked->cooperative = value->cooperative;
            break;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            asked->dependent = value->programmaticStreamSerializationAllowed;
            break;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            asked->cluster[0] = value->clusterDim.x;
            asked->cluster[1] = value->clusterDim.y;
            asked->cluster[2] = value->clusterDim.z;
            REQUIRE(value->clusterDim.x && value->clusterDim.y && value->clusterDim.z, INVALID_VALUE);
            REQUIRE(value->clusterDim.x * value->clusterDim.y * value->clusterDim.z <= 8, INVALID_CLUSTER_SIZE);
            REQUIRE(config->gridDimX % value->clusterDim.x == 0 && config->gridDimY % value->clusterDim.y == 0 &&
                    config->gridDimZ % value->clusterDim.z == 0, INVALID_VALUE);
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult check(const CUlaunchConfig *c, const struct CUkern_st *kernel, bool cooperative)
{
    REQUIRE(c->gridDimX && c->gridDimY && c->gridDimZ, INVALID_VALUE);
    REQUIRE(c->gridDimX <= 0x7fffffff && c->gridDimY <= 65535 && c->gridDimZ <= 65535, INVALID_VALUE);
    REQUIRE(c->blockDimX && c->blockDimY && c->blockDimZ, INVALID_VALUE);
    REQUIRE(c->blockDimX <= 1024 && c->blockDimY <= 1024 && c->blockDimZ <= 64, INVALID_VALUE);
    unsigned threads = c->blockDimX * c->blockDimY * c->blockDimZ;
    REQUIRE(threads <= 1024 && threads <= kernel->max_threads, INVALID_VALUE);
    REQUIRE(c->sharedMemBytes <= kernel->max_dynamic_shared, INVALID_VALUE);
    REQUIRE(c->sharedMemBytes + kernel->static_shared <= SHARED_LIMIT, INVALID_VALUE);
    long resident = (long)resident_blocks(kernel, threads, c->sharedMemBytes) * n_sms();
    REQUIRE(resident, LAUNCH_OUT_OF_RESOURCES);
    long blocks = (long)c->gridDimX * c->gridDimY * c->gridDimZ;
    REQUIRE(!cooperative || blocks <= resident, COOPERATIVE_LAUNCH_TOO_LARGE);
    return CUDA_SUCCESS;
}

static struct launch *new_launch(const CUlaunchConfig *c, const struct CUkern_st *kernel, const struct asked *asked)
{
    unsigned bytes = kernel->param_bytes;
    for (unsigned i = 0; i < kernel->n_params; i++)
        if (kernel->offsets[i] + kernel->sizes[i] > bytes)
            bytes = kernel->offsets[i] + kernel->sizes[i];
    struct launch *launch = calloc(1, sizeof *launch + bytes);
    *launch = (struct launch){
        kernel->name, kernel->offsets, kernel->sizes, 0, (uintptr_t)kernel->library,
        {c->gridDimX, c->gridDimY, c->gridDimZ}, {c->blockDimX, c->blockDimY, c->blockDimZ},
        {asked->cluster[0], asked->cluster[1], asked->cluster[2]},
        c->sharedMemBytes, asked->cooperative, asked->dependent, kernel->n_params, bytes, kernel->carveout};
    return launch;
}

static CUresult launch_kernel(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    CONTEXT();
    struct CUkern_st *kernel = kernel_of(function);
    REQUIRE(kernel, INVALID_HANDLE);
    CUstream stream;
    CHECK(stream_of(config->hStream, &stream));
    REQUIRE(stream->ctx == ctx, INVALID_HANDLE);
    if (do_nothing)
        return CUDA_SUCCESS;
    struct asked asked = {0};
    CHECK(read_attributes(&asked, config));
    CHECK(check(config, kernel, asked.cooperative));
    CHECK(load_kernel("a first launch", kernel));
    struct launch *launch = new_launch(config, kernel, &asked);
    launch->device = ctx->device;
    launch->replayed = stream->capture != NULL;
    struct op op = {run_launch, .launch = launch};
    CUresult result = read_params(launch, kernel, params, extra);
    return result ? result : submit(config->hStream, &op); /* graphs, and held streams, keep `launch` */
}

/* The context of a CUkernel is that of its stream, or of the thread for the default streams. */
CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    CUcontext current = stack_top;
    if (lives(config->hStream, STREAM))
        stack_top = config->hStream->ctx;
    CUresult result = launch_kernel(config, function, params, extra);
    stack_top = current;
    return result;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
    CUlaunchConfig config = {gx, gy, gz, bx, by, bz, shared, stream};
    return cuLaunchKernelEx(&config, function, params, extra);
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                           unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    CUlaunchConfig config = {gx, gy, gz, bx, by, bz, shared, stream, &attribute, 1};
    return cuLaunchKernelEx(&config, function, params, NULL);
}
