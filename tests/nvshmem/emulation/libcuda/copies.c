/* Copies and fills: each is an operation of a stream, done at once or recorded (stream.c). */
#include "stub.h"

#include <string.h>

static size_t extent(size_t pitch, size_t width, size_t height)
{
    return height ? (height - 1) * pitch + width : 0;
}

static CUresult run_copy(struct op *op, bool dry)
{
    if (!op->copy.width || !op->copy.height)
        return CUDA_SUCCESS;
    size_t to = extent(op->copy.dst_pitch, op->copy.width, op->copy.height);
    size_t from = extent(op->copy.src_pitch, op->copy.width, op->copy.height);
    char *dst = as_host(op->copy.dst, to, op->copy.dst_side);
    char *src = as_host(op->copy.src, from, op->copy.src_side);
    REQUIRE(dst && src, INVALID_VALUE);
    for (size_t row = 0; row < op->copy.height && !dry; row++)
        memmove(dst + row * op->copy.dst_pitch, src + row * op->copy.src_pitch, op->copy.width);
    return CUDA_SUCCESS;
}

/* A copy of the host's pageable memory is not asynchronous, whatever its name. */
static CUresult submit_copy(const char *call, CUstream handle, struct op *op)
{
    bool to_host = op->copy.dst_side == HOST_SIDE, from_host = op->copy.src_side == HOST_SIDE;
    bool pageable = (to_host && !owner_of(op->copy.dst, 1)) || (from_host && !owner_of(op->copy.src, 1));
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    if (pageable && !stream->capture)
        CHECK(would_wait_for(call, stream));
    return submit(handle, op);
}

static CUresult copy(const char *call, uintptr_t dst, int dst_side, uintptr_t src, int src_side, size_t n, CUstream stream)
{
    CONTEXT();
    struct op op = {run_copy, .copy = {dst, src, dst_side, src_side, n, n, n, 1}};
    return submit_copy(call, stream, &op);
}

/* What is not of a stream is of the legacy default stream, waited for, and forbidden while one captures. */
static CUresult blocking(const char *call, uintptr_t dst, int dst_side, uintptr_t src, int src_side, size_t n)
{
    CONTEXT();
    CHECK(idle());
    CHECK(would_wait(call, ctx, DEFAULT_STREAM));
    return copy(call, dst, dst_side, src, src_side, n, CU_STREAM_LEGACY);
}

CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return blocking("cuMemcpy", dst, EITHER_SIDE, src, EITHER_SIDE, n);
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t n)
{
    return blocking("cuMemcpyHtoD", dst, DEVICE_SIDE, (uintptr_t)src, HOST_SIDE, n);
}

CUresult CUDAAPI cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t n)
{
    return blocking("cuMemcpyDtoH", (uintptr_t)dst, HOST_SIDE, src, DEVICE_SIDE, n);
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return blocking("cuMemcpyDtoD", dst, DEVICE_SIDE, src, DEVICE_SIDE, n);
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n)
{
    return cuMemcpyDtoD(dst, src, n);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return copy("cuMemcpyAsync", dst, EITHER_SIDE, src, EITHER_SIDE, n, stream);
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
{
    return copy("cuMemcpyHtoDAsync", dst, DEVICE_SIDE, (uintptr_t)src, HOST_SIDE, n, stream);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return copy("cuMemcpyDtoHAsync", (uintptr_t)dst, HOST_SIDE, src, DEVICE_SIDE, n, stream);
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return copy("cuMemcpyDtoDAsync", dst, DEVICE_SIDE, src, DEVICE_SIDE, n, stream);
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream stream)
{
    return cuMemcpyDtoDAsync(dst, src, n, stream);
}

/* ---- in two dimensions ---- */

static int side_of(CUmemorytype type)
{
    return type == CU_MEMORYTYPE_HOST ? HOST_SIDE : type == CU_MEMORYTYPE_DEVICE ? DEVICE_SIDE : EITHER_SIDE;
}

static uintptr_t start_of(CUmemorytype type, const void *host, CUdeviceptr device)
{
    return type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device;
}

CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D *m, CUstream stream)
{
    CONTEXT();
    REQUIRE(m->srcMemoryType != CU_MEMORYTYPE_ARRAY && m->dstMemoryType != CU_MEMORYTYPE_ARRAY, NOT_SUPPORTED);
    size_t dst_pitch = m->dstPitch ? m->dstPitch : m->WidthInBytes;
    size_t src_pitch = m->srcPitch ? m->srcPitch : m->WidthInBytes;
    REQUIRE(m->dstXInBytes + m->WidthInBytes <= dst_pitch, INVALID_VALUE);
    REQUIRE(m->srcXInBytes + m->WidthInBytes <= src_pitch, INVALID_VALUE);
    uintptr_t dst = start_of(m->dstMemoryType, m->dstHost, m->dstDevice);
    uintptr_t src = start_of(m->srcMemoryType, m->srcHost, m->srcDevice);
    dst += m->dstY * dst_pitch + m->dstXInBytes;
    src += m->srcY * src_pitch + m->srcXInBytes;
    struct op op = {run_copy, .copy = {dst, src, side_of(m->dstMemoryType), side_of(m->srcMemoryType),
                                       dst_pitch, src_pitch, m->WidthInBytes, m->Height}};
    return submit_copy("cuMemcpy2DAsync", stream, &op);
}

CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D *m)
{
    CONTEXT();
    CHECK(idle());
    CHECK(would_wait("cuMemcpy2D", ctx, DEFAULT_STREAM));
    return cuMemcpy2DAsync(m, CU_STREAM_LEGACY);
}

CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *m) { return cuMemcpy2D(m); }

/* ---- fills ---- */

static CUresult run_set(struct op *op, bool dry)
{
    size_t unit = op->set.unit, width = op->set.width * unit;
    if (!width || !op->set.height)
        return CUDA_SUCCESS;
    REQUIRE(op->set.dst % unit == 0 && (op->set.height == 1 || op->set.pitch >= width), INVALID_VALUE);
    char *dst = as_host(op->set.dst, extent(op->set.pitch, width, op->set.height), DEVICE_SIDE);
    REQUIRE(dst, INVALID_VALUE);
    for (size_t row = 0; row < op->set.height && !dry; row++)
        for (size_t i = 0; i < width; i += unit)
            memcpy(dst + row * op->set.pitch + i, &op->set.value, unit);
    return CUDA_SUCCESS;
}

static CUresult set(CUdeviceptr dst, size_t pitch, unsigned value, unsigned unit, size_t width, size_t height, CUstream stream)
{
    CONTEXT();
    struct op op = {run_set, .set = {dst, value, unit, pitch, width, height}};
    return submit(stream, &op);
}

#define FILL(BITS, TYPE)                                                                         \
    CUresult CUDAAPI cuMemsetD##BITS##Async(CUdeviceptr dst, TYPE v, size_t n, CUstream stream)   \
    {                                                                                             \
        return set(dst, 0, v, BITS / 8, n, 1, stream);                                            \
    }                                                                                             \
    CUresult CUDAAPI cuMemsetD2D##BITS##Async(CUdeviceptr dst, size_t pitch, TYPE v, size_t width, \
                                              size_t height, CUstream stream)                     \
    {                                                                                             \
        return set(dst, pitch, v, BITS / 8, width, height, stream);                               \
    }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned int)

CUresult CUDAAPI cuMemsetD8(CUdeviceptr dst, unsigned char v, size_t n)
{
    CHECK(idle());
    return cuMemsetD8Async(dst, v, n, CU_STREAM_LEGACY);
}

CUresult CUDAAPI cuMemsetD16(CUdeviceptr dst, unsigned short v, size_t n)
{
    CHECK(idle());
    return cuMemsetD16Async(dst, v, n, CU_STREAM_LEGACY);
}

CUresult CUDAAPI cuMemsetD32(CUdeviceptr dst, unsigned v, size_t n)
{
    CHECK(idle());
    return cuMemsetD32Async(dst, v, n, CU_STREAM_LEGACY);
}
