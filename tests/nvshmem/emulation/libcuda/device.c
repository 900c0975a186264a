/* Devices and contexts. Settings, read at cuInit: EMULATION_DEVICES, EMULATION_SMS, and
 * CUDA_VISIBLE_DEVICES as a list of numbers. */
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__thread CUcontext stack_top;
static __thread CUcontext stack[64];
static __thread int depth; /* stack[depth - 1] is stack_top */

static struct CUctx_st primaries[MAX_DEVICES];
static int visible[MAX_DEVICES], count, sms;
static pid_t owner;

long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atol(text) : otherwise;
}

/* As CUDA reads it: up to the first entry that is no device. */
static void choose_visible(int there)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    count = 0;
    if (!text) {
        while (count < there)
            visible[count] = count, count++;
        return;
    }
    for (char *end; count < MAX_DEVICES; text = end + 1) {
        long device = strtol(text, &end, 10);
        if (end == text || device < 0 || device >= there)
            return;
        visible[count++] = device;
        if (*end != ',')
            return;
    }
}

EXPORT int emulation_devices(void)
{
    long there = setting("EMULATION_DEVICES", 2);
    return there > MAX_DEVICES ? MAX_DEVICES : there;
}

int n_devices(void) { return count; }
int n_sms(void) { return sms; }

CUresult CUDAAPI cuInit(unsigned flags)
{
    REQUIRE(flags == 0, INVALID_VALUE);
    if (owner)
        return initialised();
    choose_visible(emulation_devices());
    choose_loading();
    REQUIRE(count, NO_DEVICE);
    sms = setting("EMULATION_SMS", 132);
    REQUIRE(initialise_memory() == 0, OUT_OF_MEMORY);
    owner = getpid();
    return CUDA_SUCCESS;
}

/* A process forked after cuInit cannot use CUDA. */
CUresult initialised(void)
{
    return owner == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult context(CUcontext *ctx)
{
    CHECK(initialised());
    REQUIRE(stack_top, INVALID_CONTEXT);
    REQUIRE(stack_top->alive, CONTEXT_IS_DESTROYED);
    *ctx = stack_top;
    return stack_top->sticky;
}

static CUstream default_stream(CUcontext ctx, unsigned flags)
{
    CUstream stream = create(STREAM, sizeof *stream);
    stream->ctx = ctx;
    stream->flags = flags;
    return stream;
}

static void enliven(CUcontext ctx, int device)
{
    ctx->device = device;
    ctx->alive = 1;
    ctx->sticky = CUDA_SUCCESS;
    ctx->peers = 0;
    ctx->legacy = default_stream(ctx, CU_STREAM_DEFAULT);
    ctx->per_thread = default_stream(ctx, CU_STREAM_DEFAULT);
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
}

CUcontext primary(int device)
{
    CUcontext ctx = &primaries[device];
    ctx->primary = 1;
    if (!ctx->alive)
        enliven(ctx, device);
    return ctx;
}

#define DEVICE(d) CHECK(initialised()); REQUIRE((d) >= 0 && (d) < count, INVALID_DEVICE)

CUresult CUDAAPI cuDriverGetVersion(int *version) { *version = DRIVER_VERSION; return 0; }

CUresult CUDAAPI cuDeviceGetCount(int *n) { CHECK(initialised()); *n = count; return 0; }

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int n, CUdevice device)
{
    DEVICE(device);
    snprintf(name, n, "Emulated device %d (no GPU)", visible[device]);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    DEVICE(device);
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid->bytes, "emulated", 8);
    uuid->bytes[15] = visible[device];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int n, CUdevice device)
{
    DEVICE(device);
    snprintf(text, n, "0000:%02x:00.0", visible[device] + 1);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    CHECK(initialised());
    for (int i = 0; i < count; i++) {
        char own[16];
        cuDeviceGetPCIBusId(own, sizeof own, i);
        if (!strcmp(own, text)) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

static const struct { CUdevice_attribute attribute; int value; } ATTRIBUTES[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 0x7fffffff},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, STATIC_SHARED_LIMIT},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SHARED_LIMIT},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SHARED_PER_SM},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, REGISTERS_PER_SM},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, REGISTERS_PER_SM},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, THREADS_PER_SM},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, BLOCKS_PER_SM},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 2619000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 50 << 20},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, SM / 10},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, SM % 10},
};

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    DEVICE(device);
    REQUIRE(attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX, INVALID_VALUE);
    *value = 0;
    if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        *value = sms;
    if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)
        *value = visible[device] + 1;
    for (size_t i = 0; i < sizeof ATTRIBUTES / sizeof *ATTRIBUTES; i++)
        if (ATTRIBUTES[i].attribute == attribute)
            *value = ATTRIBUTES[i].value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    DEVICE(device);
    DEVICE(peer);
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
    DEVICE(device);
    *ctx = primary(device);
    (*ctx)->references++;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    DEVICE(device);
    CUcontext ctx = &primaries[device];
    REQUIRE(ctx->references > 0, INVALID_CONTEXT);
    if (--ctx->references == 0)
        ctx->alive = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    DEVICE(device);
    primaries[device].sticky = CUDA_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    DEVICE(device);
    *flags = primaries[device].flags;
    *active = primaries[device].alive;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    DEVICE(device);
    primaries[device].flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice device)
{
    DEVICE(device);
    *ctx = calloc(1, sizeof **ctx);
    enliven(*ctx, device);
    (*ctx)->flags = flags;
    return cuCtxPushCurrent(*ctx);
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    CHECK(initialised());
    REQUIRE(ctx && !ctx->primary && ctx->alive, INVALID_CONTEXT);
    ctx->alive = 0;
    if (stack_top == ctx)
        return cuCtxPopCurrent(&ctx);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx)
{
    CHECK(initialised());
    REQUIRE(ctx && ctx->alive && depth < 64, INVALID_CONTEXT);
    stack[depth++] = stack_top = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *ctx)
{
    CHECK(initialised());
    REQUIRE(depth, INVALID_CONTEXT);
    if (ctx)
        *ctx = stack_top;
    stack_top = --depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx)
{
    CHECK(initialised());
    if (depth)
        cuCtxPopCurrent(NULL);
    return ctx ? cuCtxPushCurrent(ctx) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *ctx)
{
    CHECK(initialised());
    *ctx = stack_top;
    return CUDA_SUCCESS;
}

static CUresult known(CUcontext *ctx)
{
    CHECK(initialised());
    *ctx = *ctx ? *ctx : stack_top;
    REQUIRE(*ctx, INVALID_CONTEXT);
    REQUIRE((*ctx)->alive, CONTEXT_IS_DESTROYED);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    CHECK(known(&ctx));
    *device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) { return cuCtxGetDevice_v2(device, NULL); }

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext ctx)
{
    CHECK(known(&ctx));
    CHECK(ctx->sticky);
    CHECK(idle());
    return would_wait("cuCtxSynchronize", ctx, ALL_STREAMS);
}

CUresult CUDAAPI cuCtxSynchronize(void) { return cuCtxSynchronize_v2(NULL); }

CUresult CUDAAPI cuCtxGetFlags(unsigned *flags) { CONTEXT(); *flags = ctx->flags; return 0; }

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned *version)
{
    CHECK(known(&ctx));
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
    CHECK(known(&ctx));
    *id = (uintptr_t)ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CONTEXT();
    REQUIRE(limit >= 0 && limit < CU_LIMIT_MAX, UNSUPPORTED_LIMIT);
    *value = ctx->limits[limit];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    CONTEXT();
    REQUIRE(limit >= 0 && limit < CU_LIMIT_MAX, UNSUPPORTED_LIMIT);
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CONTEXT();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CONTEXT();
    REQUIRE(peer && peer->alive && peer->device != ctx->device, INVALID_CONTEXT);
    REQUIRE(flags == 0, INVALID_VALUE);
    REQUIRE(!(ctx->peers >> peer->device & 1), PEER_ACCESS_ALREADY_ENABLED);
    ctx->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
    CONTEXT();
    REQUIRE(peer && ctx->peers >> peer->device & 1, PEER_ACCESS_NOT_ENABLED);
    ctx->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}

/* The device of the calling thread, by its number before CUDA_VISIBLE_DEVICES; -1 for none. */
EXPORT int emulation_current_device(void)
{
    return initialised() || !stack_top ? -1 : visible[stack_top->device];
}
