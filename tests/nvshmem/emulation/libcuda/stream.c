/* Streams, which do everything at once and in order unless they are held, and events. */
#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static bool behind(CUstream stream);

static CUresult put_off(CUstream stream, struct op *op)
{
    op->stream = stream;
    stream->later = realloc(stream->later, (stream->n_later + 1) * sizeof *op);
    stream->later[stream->n_later++] = *op;
    return CUDA_SUCCESS;
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
    return behind(op->stream) ? put_off(op->stream, op) : op->run(op, false);
}

static bool blocking(CUstream stream) { return !(stream->flags & CU_STREAM_NON_BLOCKING); }

/* Whether one waits for the other's earlier work: the default stream and all that are blocking do. */
static bool ordered(CUstream a, CUstream b)
{
    if (a == b)
        return true;
    bool legacy = a == a->ctx->legacy || b == b->ctx->legacy;
    return a->ctx == b->ctx && legacy && blocking(a) && blocking(b);
}

/* A held stream that this one is ordered with, or one that waits for an event of a held one. */
static CUstream held_up(CUstream stream)
{
    for (CUstream other = NULL; (other = next_stream(other));)
        if (ordered(stream, other) && (other->held || (other == stream && other->n_later)))
            return other;
    return NULL;
}

static bool behind(CUstream stream) { return held_up(stream) || stream->n_later; }

static CUresult run_wait(struct op *op, bool dry) { return CUDA_SUCCESS; }

static bool stuck(CUstream stream)
{
    if (stream->later[0].run == run_wait)
        return stream->later[0].event->pending;
    for (CUstream other = NULL; (other = next_stream(other));)
        if (other->held && ordered(stream, other))
            return true;
    return false;
}

/* Do what has been put off, as far as nothing holds it up any more. */
static CUresult catch_up(void)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (CUstream stream = NULL; (stream = next_stream(stream));)
            while (stream->n_later && !stuck(stream)) {
                struct op op = stream->later[0];
                memmove(stream->later, stream->later + 1, --stream->n_later * sizeof op);
                moved = true;
                CHECK(op.run(&op, false));
            }
    }
    return CUDA_SUCCESS;
}

/* From now on a stream puts its work off and is never done, until it is let go. */
EXPORT int emulation_hold(CUstream handle, int held)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    stream->held = held;
    return held ? CUDA_SUCCESS : catch_up();
}

/* ---- what would wait for a stream that is held ---- */

static char *waits[1024];
static unsigned n_waits;

static CUresult note(const char *call, CUstream stream)
{
    char name[64], text[256];
    snprintf(name, sizeof name, "stream %#llx", (unsigned long long)(uintptr_t)stream);
    snprintf(text, sizeof text, "%s waits for %s, which is held", call,
             stream == stream->ctx->legacy ? "the default stream" : name);
    waits[n_waits++ % 1024] = strdup(text);
    return CUDA_ERROR_LAUNCH_TIMEOUT;
}

const char *last_wait(void) { return n_waits ? waits[(n_waits - 1) % 1024] : "no stream is held"; }

CUresult would_wait_for(const char *call, CUstream stream)
{
    CUstream held = held_up(stream);
    return held ? note(call, held) : CUDA_SUCCESS;
}

CUresult would_wait(const char *call, CUcontext ctx, int which)
{
    for (CUstream stream = NULL; (stream = next_stream(stream));)
        if (stream->ctx == ctx && (stream->held || stream->n_later)
            && (which == ALL_STREAMS || ordered(stream, ctx->legacy)))
            return note(call, stream);
    return CUDA_SUCCESS;
}

/* Of what NVSHMEM does: wait for all of the current device's streams. */
EXPORT int emulation_device_wait(const char *call)
{
    CONTEXT();
    return would_wait(call, ctx, ALL_STREAMS);
}

EXPORT const char *emulation_wait_text(unsigned i) { return i < n_waits ? waits[i % 1024] : NULL; }
EXPORT void emulation_clear_waits(void) { n_waits = 0; }

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
    CHECK(would_wait_for("cuStreamSynchronize", stream));
    return check_not_captured(stream);
}

CUresult CUDAAPI cuStreamQuery(CUstream handle)
{
    STREAM_OF(handle);
    REQUIRE(!behind(stream), NOT_READY);
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

static CUresult run_record(struct op *op, bool dry)
{
    op->event->pending &= dry;
    op->event->milliseconds = now();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags)
{
    STREAM_OF(handle);
    REQUIRE(lives(event, EVENT) && event->ctx == stream->ctx, INVALID_HANDLE);
    REQUIRE(!legacy_conflicts(stream), STREAM_CAPTURE_IMPLICIT);
    event->capture = stream->capture;
    event->stream = stream;
    event->recorded = event->pending = !stream->capture;
    struct op op = {run_record, .event = event};
    return stream->capture ? CUDA_SUCCESS : submit(handle, &op);
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

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    CHECK(usable(event));
    return event->pending ? note("cuEventSynchronize", event->stream) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventQuery(CUevent event)
{
    CHECK(usable(event));
    CHECK(idle());
    return event->pending ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
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
        struct op op = {run_wait, .event = event};
        return event->pending ? put_off(stream, &op) : CUDA_SUCCESS;
    }
    REQUIRE(!stream->capture || stream->capture == event->capture, STREAM_CAPTURE_MERGE);
    stream->unjoined = !stream->capture || stream->unjoined;
    stream->capture = event->capture;
    if (event->stream != stream)
        event->stream->unjoined = false;
    return CUDA_SUCCESS;
}
