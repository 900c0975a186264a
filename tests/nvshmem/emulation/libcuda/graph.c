/* Graphs: lists of operations, done in the order in which they were recorded. */
#include "stub.h"

#include <stdlib.h>

struct CUuserObject_st {
    struct object object;
    CUhostFn destroy;
    void *data;
    long references;
};

struct CUgraph_st {
    struct object object;
    struct op *ops;
    size_t n;
    CUuserObject *objects; /* that are to live as long as the graph, one entry for each reference */
    size_t n_objects;
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
    unsigned long long flags;
};

CUgraph new_graph(void) { return create(GRAPH, sizeof(struct CUgraph_st)); }

void add_node(CUgraph graph, struct op *op)
{
    graph->ops = realloc(graph->ops, (graph->n + 1) * sizeof *op);
    graph->ops[graph->n++] = *op;
}

/* ---- what callers want to keep as long as a graph ---- */

CUresult CUDAAPI cuUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy, unsigned references, unsigned flags)
{
    CHECK(initialised());
    REQUIRE(destroy && references && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, INVALID_VALUE);
    *object = create(USER_OBJECT, sizeof **object);
    (*object)->destroy = destroy;
    (*object)->data = data;
    (*object)->references = references;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject object, unsigned n)
{
    REQUIRE(lives(object, USER_OBJECT), INVALID_VALUE);
    object->references += n;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned n)
{
    REQUIRE(lives(object, USER_OBJECT) && object->references >= n, INVALID_VALUE);
    object->references -= n;
    if (!object->references) {
        object->object.alive = 0;
        object->destroy(object->data);
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned n, unsigned flags)
{
    REQUIRE(lives(graph, GRAPH) && lives(object, USER_OBJECT), INVALID_VALUE);
    graph->objects = realloc(graph->objects, (graph->n_objects + n) * sizeof object);
    for (unsigned i = 0; i < n; i++)
        graph->objects[graph->n_objects++] = object;
    return flags & CU_GRAPH_USER_OBJECT_MOVE ? CUDA_SUCCESS : cuUserObjectRetain(object, n);
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned n)
{
    REQUIRE(lives(graph, GRAPH), INVALID_VALUE);
    for (size_t i = 0; i < graph->n_objects && n; i++)
        if (graph->objects[i] == object) {
            graph->objects[i--] = graph->objects[--graph->n_objects];
            CHECK(cuUserObjectRelease(object, 1));
            n--;
        }
    return n ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void end(CUgraph graph)
{
    graph->object.alive = 0;
    while (graph->n_objects)
        cuUserObjectRelease(graph->objects[--graph->n_objects], 1);
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
    end(graph);
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
    (*exec)->flags = flags;
    for (size_t i = 0; i < graph->n; i++)
        add_node(&(*exec)->graph, &graph->ops[i]);
    CUgraph own = &(*exec)->graph;
    own->n_objects = graph->n_objects;
    own->objects = malloc((own->n_objects + 1) * sizeof *own->objects);
    for (size_t i = 0; i < own->n_objects; i++) {
        own->objects[i] = graph->objects[i];
        own->objects[i]->references++;
    }
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
    end(&exec->graph);
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
    for (size_t i = 0; i < exec->graph.n && !stream->ctx->sticky; i++) {
        struct op op = exec->graph.ops[i];
        op.stream = stream;
        CUresult result = op.run(&op, false);
        if (result) /* what a node used is gone: the fault of the device, told afterwards */
            stream->ctx->sticky = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    return CUDA_SUCCESS;
}
