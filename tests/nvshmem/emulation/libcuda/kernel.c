/* What is known of a kernel, and how many of its blocks a multiprocessor holds. */
#include "stub.h"

static CUresult attribute_of(int *value, CUfunction_attribute which, const struct CUkern_st *kernel)
{
    REQUIRE(kernel, INVALID_HANDLE);
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = kernel->max_threads;
        break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = kernel->static_shared;
        break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
        *value = kernel->local;
        break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = kernel->registers;
        break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = SM;
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = kernel->max_dynamic_shared;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = kernel->carveout;
        break;
    default:
        REQUIRE(which >= 0 && which < CU_FUNC_ATTRIBUTE_MAX, INVALID_VALUE);
        *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction_attribute which, int value, struct CUkern_st *kernel)
{
    REQUIRE(kernel, INVALID_HANDLE);
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        REQUIRE(value >= 0 && value + (int)kernel->static_shared <= SHARED_LIMIT, INVALID_VALUE);
        kernel->max_dynamic_shared = value;
    }
    if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        REQUIRE(value >= -1 && value <= 100, INVALID_VALUE);
        kernel->carveout = value;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device)
{
    CHECK(initialised());
    REQUIRE(device >= 0 && device < n_devices(), INVALID_DEVICE);
    return attribute_of(value, which, kernel_of(kernel));
}

CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device)
{
    CHECK(initialised());
    REQUIRE(device >= 0 && device < n_devices(), INVALID_DEVICE);
    return set_attribute(which, value, kernel_of(kernel));
}

CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function)
{
    CONTEXT();
    return attribute_of(value, which, kernel_of(function));
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value)
{
    CONTEXT();
    return set_attribute(which, value, kernel_of(function));
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    CONTEXT();
    REQUIRE(kernel_of(kernel), INVALID_HANDLE);
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    REQUIRE(kernel_of(kernel), INVALID_HANDLE);
    *library = kernel->library;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel)
{
    REQUIRE(kernel_of(kernel), INVALID_HANDLE);
    *name = kernel->name;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function)
{
    return cuKernelGetName(name, (CUkernel)function);
}

CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction function)
{
    return cuKernelGetLibrary((CUlibrary *)module, (CUkernel)function);
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel handle, size_t i, size_t *offset, size_t *size)
{
    struct CUkern_st *kernel = kernel_of(handle);
    REQUIRE(kernel, INVALID_HANDLE);
    REQUIRE(i < kernel->n_params, INVALID_VALUE);
    *offset = kernel->offsets[i];
    if (size)
        *size = kernel->sizes[i];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction function, size_t i, size_t *offset, size_t *size)
{
    return cuKernelGetParamInfo((CUkernel)function, i, offset, size);
}

CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
    struct CUkern_st *kernel = kernel_of(function);
    REQUIRE(kernel, INVALID_HANDLE);
    return load_kernel("cuFuncLoad", kernel);
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }

/* ---- occupancy ---- */

static int least(int a, int b) { return a < b ? a : b; }

int resident_blocks(const struct CUkern_st *kernel, int threads, size_t dynamic_shared)
{
    int warps = (threads + 31) / 32;
    int registers = (kernel->registers * 32 + 255) / 256 * 256 * warps; /* given out by 256 */
    size_t shared = kernel->static_shared + dynamic_shared;
    if (threads > (int)kernel->max_threads || shared > SHARED_LIMIT || registers > REGISTERS_PER_SM)
        return 0;
    int blocks = least(BLOCKS_PER_SM, THREADS_PER_SM / (warps * 32));
    blocks = least(blocks, SHARED_PER_SM / (shared + 1024)); /* 1 KiB of each is the system's */
    return registers ? least(blocks, REGISTERS_PER_SM / registers) : blocks;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads, size_t shared, unsigned flags)
{
    CONTEXT();
    struct CUkern_st *kernel = kernel_of(function);
    REQUIRE(kernel, INVALID_HANDLE);
    REQUIRE(threads > 0, INVALID_VALUE);
    *blocks = resident_blocks(kernel, threads, shared);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                           CUoccupancyB2DSize shared_of, size_t shared,
                                                           int limit, unsigned flags)
{
    CONTEXT();
    struct CUkern_st *kernel = kernel_of(function);
    REQUIRE(kernel, INVALID_HANDLE);
    int best = 0, most = limit && limit < (int)kernel->max_threads ? limit : (int)kernel->max_threads;
    for (int threads = most / 32 * 32; threads; threads -= 32) {
        int blocks = resident_blocks(kernel, threads, shared_of ? shared_of(threads) : shared);
        if (blocks * threads > best) {
            best = blocks * threads;
            *block = threads;
            *grid = blocks * n_sms();
        }
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0);
}

CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int threads)
{
    CONTEXT();
    struct CUkern_st *kernel = kernel_of(function);
    REQUIRE(kernel, INVALID_HANDLE);
    REQUIRE(blocks > 0 && threads > 0, INVALID_VALUE);
    size_t each = SHARED_PER_SM / blocks - 1024;
    each = each > SHARED_LIMIT ? SHARED_LIMIT : each;
    *bytes = each > kernel->static_shared ? each - kernel->static_shared : 0;
    return CUDA_SUCCESS;
}

/* A cluster is within one GPC, here of 16 multiprocessors. */
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    CONTEXT();
    struct CUkern_st *kernel = kernel_of(function);
    REQUIRE(kernel, INVALID_HANDLE);
    unsigned size = 0;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const CUlaunchAttributeValue *value = &config->attrs[i].value;
            size = value->clusterDim.x * value->clusterDim.y * value->clusterDim.z;
        }
    REQUIRE(size, INVALID_CLUSTER_SIZE);
    int threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    int blocks = resident_blocks(kernel, threads, config->sharedMemBytes);
    *clusters = n_sms() / 16 * (16 * blocks / size) + n_sms() % 16 * blocks / size;
    return CUDA_SUCCESS;
}
