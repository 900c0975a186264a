/* Streams, which do everything at once and in order, and events. */
#include "stub.h"

#include <stdlib.h>
#include <time.h>

static unsigned long long last_stream;

CUresult stream_of(CUstream handle, CUstream *stream)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY)
        *stream = stack_top->legacy;
    else if (handle == CU_STREAM_PER_THREAD)
        *stream = stack_top->per_thread;
    else
        *stream = handle;
    REQUIRE(lives(*stream, STREAM), INVALID_HANDLE);
    return CUDA_SUCCESS;
}

CUresult check_not_captured(CUstream stream)
{
    if (!stream->capture)
        return CUDA_SUCCESS;
    invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult submit(CUstream handle, struct op *op)
{
    CHECK(stream_of(handle, &op->stream));
    REQUIRE(!legacy_conflicts(op->stream), STREAM_CAPTURE_IMPLICIT);
    CHECK(op->run(op, true));
    if (op->stream->capture) {
        append(op->stream->capture, op);
        return CUDA_SUCCESS;
    }
    if (op->stream->held) {
        CUstream stream = op->stream;
        stream->later = realloc(stream->later, (stream->n_later + 1) * sizeof *op);
        stream->later[stream->n_later++] = *op;
        return CUDA_SUCCESS;
    }
    return op->run(op, false);
}

/* From now on a stream puts its work off and is never done, until it is let go. */
EXPORT int emulation_hold(CUstream handle, int held)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    stream->held = held;
    for (unsigned i = 0; !held && i < stream->n_later; i++)
        CHECK(stream->later[i].run(&stream->later[i], false));
    stream->n_later = held ? stream->n_later : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    CONTEXT();
    REQUIRE(flags <= CU_STREAM_NON_BLOCKING, INVALID_VALUE);
    CUstream made = create(STREAM, sizeof *made);
    made->ctx = ctx;
    made->flags = flags;
    made->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    made->id = ++last_stream + 2;
    *stream = made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult CUDAAPI cuStreamDestroy(CUstream handle)
{
    CHECK(initialised());
    REQUIRE(lives(handle, STREAM) && handle != handle->ctx->legacy, INVALID_HANDLE);
    if (handle->capture)
        invalidate(handle->capture);
    handle->object.alive = 0;
    return CUDA_SUCCESS;
}

#define STREAM_OF(handle) CONTEXT(); CUstream stream; CHECK(stream_of(handle, &stream))

/* CUDA would wait for ever for a stream that is held. */
CUresult CUDAAPI cuStreamSynchronize(CUstream handle)
{
    STREAM_OF(handle);
    REQUIRE(!stream->held, LAUNCH_TIMEOUT);
    return check_not_captured(stream);
}

CUresult CUDAAPI cuStreamQuery(CUstream handle)
{
    STREAM_OF(handle);
    REQUIRE(!stream->held, NOT_READY);
    return check_not_captured(stream);
}

CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned *flags)
{
    STREAM_OF(handle);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int *priority)
{
    STREAM_OF(handle);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long *id)
{
    STREAM_OF(handle);
    *id = stream->id ? stream->id : stream == ctx->per_thread ? 2 : 1;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext *out)
{
    STREAM_OF(handle);
    *out = stream->ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    STREAM_OF(handle);
    *device = stream->ctx->device;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext *out, CUgreenCtx *green)
{
    if (green)
        *green = NULL;
    return cuStreamGetCtx(handle, out);
}

/* ---- functions of the host, in a stream ---- */

static CUresult run_host(struct op *op, bool dry)
{
    if (!dry && op->host.plain)
        op->host.plain(op->host.data);
    if (!dry && op->host.checked && op->host.checked(op->host.data))
        op->stream->ctx->sticky = CUDA_ERROR_LAUNCH_FAILED;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    CONTEXT();
    REQUIRE(function, INVALID_VALUE);
    struct op op = {run_host, .host = {.plain = function, .data = data}};
    return submit(handle, &op);
}

/* As cuLaunchHostFunc, for what a GPU would do by itself: one that returns non-zero has failed. */
EXPORT int emulation_enqueue(CUstream handle, int (*function)(void *), void *data)
{
    CONTEXT();
    struct op op = {run_host, .host = {.checked = function, .data = data}};
    return submit(handle, &op);
}

/* ---- events ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags)
{
    CONTEXT();
    *event = create(EVENT, sizeof **event);
    (*event)->ctx = ctx;
    (*event)->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy(CUevent event)
{
    CHECK(initialised());
    REQUIRE(lives(event, EVENT), INVALID_HANDLE);
    event->object.alive = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
    STREAM_OF(handle);
    REQUIRE(lives(event, EVENT) && event->ctx == stream->ctx, INVALID_HANDLE);
    REQUIRE(!legacy_conflicts(stream), STREAM_CAPTURE_IMPLICIT);
    event->capture = stream->capture;
    event->stream = stream;
    event->recorded = !stream->capture;
    event->milliseconds = now();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream handle)
{
    return cuEventRecordWithFlags(event, handle, 0);
}

static CUresult usable(CUevent event)
{
    CONTEXT();
    REQUIRE(lives(event, EVENT), INVALID_HANDLE);
    REQUIRE(!event->capture, CAPTURED_EVENT);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) { return usable(event); }

CUresult CUDAAPI cuEventQuery(CUevent event)
{
    CHECK(usable(event));
    return idle();
}

CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to)
{
    CHECK(usable(from));
    CHECK(usable(to));
    REQUIRE(from->recorded && to->recorded, INVALID_HANDLE);
    REQUIRE(!((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING), INVALID_HANDLE);
    *milliseconds = to->milliseconds - from->milliseconds;
    return CUDA_SUCCESS;
}

/* Waiting for an event of a capture takes the stream into it, or back to where it forked. */
CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    STREAM_OF(handle);
    REQUIRE(lives(event, EVENT), INVALID_HANDLE);
    if (!event->capture) {
        REQUIRE(!stream->capture || !event->recorded, STREAM_CAPTURE_ISOLATION);
        return CUDA_SUCCESS;
    }
    REQUIRE(!stream->capture || stream->capture == event->capture, STREAM_CAPTURE_MERGE);
    stream->unjoined = !stream->capture || stream->unjoined;
    stream->capture = event->capture;
    if (event->stream != stream)
        event->stream->unjoined = false;
    return CUDA_SUCCESS;
}
