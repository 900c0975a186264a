/* Where callers ask for functions: those here, and for any other of CUDA one that says
 * CUDA_ERROR_NOT_SUPPORTED, and with EMULATION_TRACE also its name. */
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define E(name) {#name, (void *)name, 0}
#define SINCE(version, name, function) {#name, (void *)function, version}
#define ASYNC(name) {#name, (void *)name, 0}, {#name "Async", (void *)name##Async, 0}

/* cuda.h names the newest of several versions by the plain name; the last row that fits counts. */
static const struct { const char *name; void *function; int since; } FUNCTIONS[] = {
    E(cuInit), E(cuDriverGetVersion), E(cuGetErrorName), E(cuGetErrorString), E(cuGetProcAddress),
    E(cuDeviceGet), E(cuDeviceGetCount), E(cuDeviceGetName), E(cuDeviceGetUuid),
    E(cuDeviceGetPCIBusId), E(cuDeviceGetByPCIBusId), E(cuDeviceGetAttribute), E(cuDeviceTotalMem),
    E(cuDeviceCanAccessPeer), E(cuDevicePrimaryCtxRetain), E(cuDevicePrimaryCtxRelease),
    E(cuDevicePrimaryCtxReset), E(cuDevicePrimaryCtxGetState), E(cuDevicePrimaryCtxSetFlags),
    SINCE(12050, cuCtxCreate, cuCtxCreate), E(cuCtxDestroy), E(cuCtxPushCurrent),
    E(cuCtxPopCurrent), E(cuCtxSetCurrent), E(cuCtxGetCurrent), E(cuCtxGetDevice),
    SINCE(13000, cuCtxGetDevice, cuCtxGetDevice_v2), E(cuCtxSynchronize),
    SINCE(13000, cuCtxSynchronize, cuCtxSynchronize_v2), E(cuCtxGetFlags), E(cuCtxGetApiVersion),
    E(cuCtxGetId), E(cuCtxGetLimit), E(cuCtxSetLimit), E(cuCtxGetStreamPriorityRange),
    E(cuCtxEnablePeerAccess), E(cuCtxDisablePeerAccess),

    E(cuMemAlloc), E(cuMemAllocPitch), E(cuMemFree), E(cuMemAllocManaged), E(cuMemHostAlloc),
    E(cuMemAllocHost), E(cuMemFreeHost), E(cuMemHostRegister), E(cuMemHostUnregister),
    E(cuMemHostGetDevicePointer), E(cuMemHostGetFlags), E(cuMemGetAddressRange), E(cuMemGetInfo),
    E(cuDeviceGetDefaultMemPool), E(cuDeviceGetMemPool), E(cuDeviceSetMemPool), E(cuMemPoolCreate),
    E(cuMemPoolDestroy), E(cuMemPoolGetAttribute), E(cuMemPoolSetAttribute), E(cuMemPoolTrimTo),
    E(cuMemPoolGetAccess), E(cuMemPoolSetAccess), E(cuMemAllocFromPoolAsync), E(cuMemAllocAsync),
    E(cuMemFreeAsync), E(cuMemCreate), E(cuMemRelease), E(cuMemAddressReserve), E(cuMemAddressFree),
    E(cuMemMap), E(cuMemUnmap), E(cuMemSetAccess), E(cuMemRetainAllocationHandle),
    E(cuMemGetAllocationPropertiesFromHandle), E(cuMemGetAllocationGranularity), E(cuPointerGetAttribute), E(cuPointerGetAttributes), E(cuPointerSetAttribute),
    ASYNC(cuMemcpy), ASYNC(cuMemcpyHtoD), ASYNC(cuMemcpyDtoH), ASYNC(cuMemcpyDtoD),
    ASYNC(cuMemcpyPeer), ASYNC(cuMemcpy2D), E(cuMemcpy2DUnaligned), ASYNC(cuMemsetD8),
    ASYNC(cuMemsetD16), ASYNC(cuMemsetD32), E(cuMemsetD2D8Async), E(cuMemsetD2D16Async),
    E(cuMemsetD2D32Async),

    E(cuStreamCreate), E(cuStreamCreateWithPriority), E(cuStreamDestroy), E(cuStreamSynchronize),
    E(cuStreamQuery), E(cuStreamGetFlags), E(cuStreamGetPriority), E(cuStreamGetId),
    E(cuStreamGetCtx), SINCE(12050, cuStreamGetCtx, cuStreamGetCtx_v2), E(cuStreamGetDevice),
    E(cuStreamWaitEvent), E(cuLaunchHostFunc), E(cuEventCreate), E(cuEventDestroy),
    E(cuEventRecord), E(cuEventRecordWithFlags), E(cuEventSynchronize), E(cuEventQuery),
    E(cuEventElapsedTime), E(cuStreamBeginCapture), E(cuStreamEndCapture), E(cuStreamIsCapturing),
    SINCE(12030, cuStreamGetCaptureInfo, cuStreamGetCaptureInfo), E(cuThreadExchangeStreamCaptureMode),
    E(cuGraphCreate), E(cuGraphDestroy), E(cuGraphGetNodes), E(cuGraphInstantiateWithFlags),
    E(cuGraphInstantiateWithParams), E(cuGraphExecDestroy), E(cuGraphExecGetFlags),
    E(cuGraphUpload), E(cuGraphLaunch), E(cuUserObjectCreate), E(cuUserObjectRetain),
    E(cuUserObjectRelease), E(cuGraphRetainUserObject), E(cuGraphReleaseUserObject),

    E(cuLibraryLoadData), E(cuLibraryUnload), E(cuLibraryGetKernel), E(cuLibraryGetKernelCount),
    E(cuLibraryEnumerateKernels), E(cuLibraryGetGlobal), E(cuLibraryGetModule), E(cuModuleLoadData),
    E(cuModuleLoadDataEx), E(cuModuleUnload), E(cuModuleGetFunction), E(cuModuleGetGlobal),
    E(cuModuleGetLoadingMode), E(cuKernelGetAttribute), E(cuKernelSetAttribute),
    E(cuFuncGetAttribute), E(cuFuncSetAttribute), E(cuKernelGetFunction), E(cuKernelGetLibrary),
    E(cuKernelGetName), E(cuFuncGetName), E(cuFuncGetModule), E(cuKernelGetParamInfo),
    E(cuFuncGetParamInfo), E(cuFuncIsLoaded), E(cuFuncLoad), E(cuFuncSetCacheConfig),
    E(cuOccupancyMaxActiveBlocksPerMultiprocessor), E(cuOccupancyMaxActiveClusters),
    E(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags), E(cuOccupancyMaxPotentialBlockSize),
    E(cuOccupancyMaxPotentialBlockSizeWithFlags), E(cuOccupancyAvailableDynamicSMemPerBlock),
    E(cuLaunchKernel), E(cuLaunchKernelEx), E(cuLaunchCooperativeKernel),
};

/* ---- a function of its own for each name that is not there ---- */

static char missing[1024][64];
static int n_missing;

static CUresult not_supported(int i)
{
    if (getenv("EMULATION_TRACE"))
        fprintf(stderr, "emulated libcuda: %s is not supported\n", missing[i]);
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define THUNK(i) static CUresult thunk_##i(void) { return not_supported(0x##i); }
#define NAME(i) thunk_##i,
#define SIXTEEN(M, i) M(i##0) M(i##1) M(i##2) M(i##3) M(i##4) M(i##5) M(i##6) M(i##7) \
    M(i##8) M(i##9) M(i##a) M(i##b) M(i##c) M(i##d) M(i##e) M(i##f)
#define LINES(M, i) SIXTEEN(M, i##0) SIXTEEN(M, i##1) SIXTEEN(M, i##2) SIXTEEN(M, i##3) \
    SIXTEEN(M, i##4) SIXTEEN(M, i##5) SIXTEEN(M, i##6) SIXTEEN(M, i##7) SIXTEEN(M, i##8) \
    SIXTEEN(M, i##9) SIXTEEN(M, i##a) SIXTEEN(M, i##b) SIXTEEN(M, i##c) SIXTEEN(M, i##d) \
    SIXTEEN(M, i##e) SIXTEEN(M, i##f)
LINES(THUNK, 0) LINES(THUNK, 1) LINES(THUNK, 2) LINES(THUNK, 3)
static CUresult (*const THUNKS[1024])(void) = {LINES(NAME, 0) LINES(NAME, 1) LINES(NAME, 2) LINES(NAME, 3)};

static void *thunk_for(const char *name, int version)
{
    char label[64];
    snprintf(label, sizeof label, "%s (%d)", name, version);
    int i = 0;
    lock();
    while (i < n_missing && strcmp(missing[i], label))
        i++;
    if (i == n_missing && i < 1024)
        strcpy(missing[n_missing++], label);
    unlock();
    return i < 1024 ? (void *)THUNKS[i] : NULL;
}

CUresult CUDAAPI cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    CUdriverProcAddressQueryResult ignored;
    status = status ? status : &ignored;
    *function = NULL;
    *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    REQUIRE(version <= DRIVER_VERSION, NOT_FOUND);
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++)
        if (!strcmp(FUNCTIONS[i].name, name) && version >= FUNCTIONS[i].since)
            *function = FUNCTIONS[i].function;
    *function = *function ? *function : thunk_for(name, version);
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

/* The driver's private tables, for NVIDIA's own libraries: NVRTC looks, and does without. */
CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *which)
{
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
