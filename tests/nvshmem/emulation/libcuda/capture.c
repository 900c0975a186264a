/* Streams that record what they would do into a graph, and graphs that do it. */
#include "stub.h"

#include <stdlib.h>
#include <string.h>

struct CUgraph_st {
    struct object object;
    struct op *ops;
    size_t n;
};
struct CUgraphExec_st {
    struct object object;
    struct op *ops;
    size_t n;
    unsigned long long flags;
};

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

void append(struct capture *capture, struct op *op)
{
    CUgraph graph = capture->graph;
    graph->ops = realloc(graph->ops, (graph->n + 1) * sizeof *op);
    graph->ops[graph->n++] = *op;
}

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

static CUgraph new_graph(void) { return create(GRAPH, sizeof(struct CUgraph_st)); }

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

/* ---- graphs ---- */

CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned flags)
{
    CHECK(initialised());
    *graph = new_graph();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    CHECK(initialised());
    REQUIRE(lives(graph, GRAPH), INVALID_VALUE);
    graph->object.alive = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    CHECK(initialised());
    REQUIRE(lives(graph, GRAPH), INVALID_VALUE);
    if (nodes)
        for (size_t i = 0; i < *n; i++)
            nodes[i] = i < graph->n ? (CUgraphNode)&graph->ops[i] : NULL;
    else
        *n = graph->n;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CONTEXT();
    REQUIRE(lives(graph, GRAPH), INVALID_VALUE);
    *exec = create(GRAPH_EXEC, sizeof **exec);
    (*exec)->n = graph->n;
    (*exec)->flags = flags;
    (*exec)->ops = malloc((graph->n + 1) * sizeof *graph->ops);
    memcpy((*exec)->ops, graph->ops, graph->n * sizeof *graph->ops);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiate(exec, graph, flags);
}

CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return instantiate(exec, graph, params->flags);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    CHECK(initialised());
    REQUIRE(lives(exec, GRAPH_EXEC), INVALID_VALUE);
    exec->object.alive = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    REQUIRE(lives(exec, GRAPH_EXEC), INVALID_VALUE);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    CONTEXT();
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    REQUIRE(lives(exec, GRAPH_EXEC), INVALID_VALUE);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    CHECK(cuGraphUpload(exec, handle));
    CUstream stream;
    CHECK(stream_of(handle, &stream));
    CHECK(check_not_captured(stream));
    for (size_t i = 0; i < exec->n && !stream->ctx->sticky; i++) {
        struct op op = exec->ops[i];
        op.stream = stream;
        CUresult result = op.run(&op, false);
        if (result) /* what a node used is gone: the fault of the device, told afterwards */
            stream->ctx->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}
