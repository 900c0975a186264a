/* Streams that record what they would do into a graph. */
#include "stub.h"

#include <stdlib.h>

struct capture {
    struct capture *next;
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    CUcontext ctx;
    bool invalid, ended;
    unsigned long long id;
};

static struct capture *captures;
static unsigned long long last_capture;

void append(struct capture *capture, struct op *op) { add_node(capture->graph, op); }

void invalidate(struct capture *capture) { capture->invalid = true; }

/* Of the legacy stream, which waits for all blocking streams, while one of them captures. */
bool legacy_conflicts(CUstream stream)
{
    if (stream != stream->ctx->legacy)
        return false;
    for (struct capture *c = captures; c; c = c->next)
        if (!c->ended && c->ctx == stream->ctx && !(c->origin->flags & CU_STREAM_NON_BLOCKING)) {
            invalidate(c);
            return true;
        }
    return false;
}

CUresult idle(void)
{
    for (struct capture *c = captures; c; c = c->next)
        if (!c->ended && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
            invalidate(c);
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    REQUIRE(stream != ctx->legacy, STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(!stream->capture, ILLEGAL_STATE);
    struct capture *c = calloc(1, sizeof *c);
    *c = (struct capture){captures, new_graph(), stream, mode, ctx, .id = ++last_capture};
    captures = stream->capture = c;
    return CUDA_SUCCESS;
}

/* Two captures never share a stream, so that any left in this one was forked and not joined. */
static bool unjoined(struct capture *c, CUstream stream)
{
    return stream->capture == c && stream != c->origin && stream->unjoined;
}

static bool leave(struct capture *c, CUstream stream)
{
    if (stream->capture == c) {
        stream->capture = NULL;
        stream->unjoined = false;
    }
    return false;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    struct capture *c = stream->capture;
    *graph = NULL;
    REQUIRE(c, ILLEGAL_STATE);
    REQUIRE(c->origin == stream, STREAM_CAPTURE_UNMATCHED);
    bool left_over = any_stream(unjoined, c);
    c->ended = true;
    any_stream(leave, c);
    REQUIRE(!c->invalid, STREAM_CAPTURE_INVALIDATED);
    REQUIRE(!left_over, STREAM_CAPTURE_UNJOINED);
    *graph = c->graph;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    REQUIRE(!legacy_conflicts(stream), STREAM_CAPTURE_IMPLICIT);
    *status = !stream->capture ? CU_STREAM_CAPTURE_STATUS_NONE
        : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                        CUgraph *graph, const CUgraphNode **dependencies,
                                        const CUgraphEdgeData **edges, size_t *n)
{
    CHECK(cuStreamIsCapturing(handle, status));
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    if (id)
        *id = stream->capture ? stream->capture->id : 0;
    if (graph)
        *graph = stream->capture ? stream->capture->graph : NULL;
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    if (n)
        *n = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    static __thread CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode was = own;
    own = *mode;
    *mode = was;
    return CUDA_SUCCESS;
}
