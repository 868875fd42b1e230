/* Memory nodes of graphs. The driver takes their memory at the first launch, from a store of its own that it tells the
 * size of. So a launch reserves what its nodes can take together; afterwards that size counts. */
#include "charge.h"
#include "gauge.h"
#include "graph_devices.h"

#include <stdlib.h>

/* Handles are addresses of structures: next to that of an instance are keys for its parts on other devices. */
enum { PARTS = 16 };

struct piece {
    uint64_t from, to;
    CUdevice ordinal;
};

struct footprint {
    struct piece *pieces;
    size_t count, room;
    CUgraph *graphs; /* that are still to be looked into */
    size_t graph_count, graph_room;
};

/* One place more in a list. */
static bool make_room(void **list, size_t size, size_t count, size_t *room)
{
    size_t more = *room ? *room * 2 : 64;
    if (count < *room)
        return true;
    void *longer = realloc(*list, more * size);
    if (!longer)
        return false;
    *list = longer;
    *room = more;
    return true;
}

static CUresult add_graph(struct footprint *in, CUgraph graph)
{
    if (!make_room((void **)&in->graphs, sizeof(CUgraph), in->graph_count, &in->graph_room))
        return CUDA_ERROR_OUT_OF_MEMORY;
    in->graphs[in->graph_count++] = graph;
    return CUDA_SUCCESS;
}

static CUresult add_allocation(struct footprint *in, CUgraphNode node)
{
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUresult result = REAL(cuGraphMemAllocNodeGetParams)(node, &allocation);
    if (result == CUDA_SUCCESS &&
        !make_room((void **)&in->pieces, sizeof(struct piece), in->count, &in->room))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        in->pieces[in->count++] = (struct piece){allocation.dptr / PAGE * PAGE,
                                                 round_capped(allocation.dptr + allocation.bytesize, PAGE),
                                                 allocation.poolProps.location.id};
    return result;
}

static CUresult add_node(struct footprint *in, CUgraphNode node)
{
    CUgraph child;
    int type = -1;
    CUresult result = REAL(cuGraphNodeGetType)(node, &type);
    if (result == CUDA_SUCCESS && type == CU_NODE_GRAPH) {
        result = REAL(cuGraphChildGraphNodeGetGraph)(node, &child);
        return result == CUDA_SUCCESS ? add_graph(in, child) : result;
    }
    return result == CUDA_SUCCESS && type == CU_NODE_ALLOC ? add_allocation(in, node) : result;
}

static CUresult add_nodes(struct footprint *in, CUgraph graph)
{
    size_t count = 0;
    CUresult result = REAL(cuGraphGetNodes)(graph, NULL, &count);
    if (result != CUDA_SUCCESS || !count)
        return result;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    result = nodes ? REAL(cuGraphGetNodes)(graph, nodes, &count) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = add_node(in, nodes[i]);
    free(nodes);
    return result;
}

/* What the memory nodes of a graph need, whatever its size and depth. What cannot be found out is an error, and the
 * graph is not instantiated. */
static CUresult measure(struct footprint *in, CUgraph graph)
{
    *in = (struct footprint){0};
    if (!process())
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add_graph(in, graph);
    while (result == CUDA_SUCCESS && in->graph_count)
        result = add_nodes(in, in->graphs[--in->graph_count]);
    free(in->graphs);
    return result;
}

static int compare(const void *a, const void *b)
{
    const struct piece *one = a, *two = b;
    if (one->ordinal != two->ordinal)
        return one->ordinal < two->ordinal ? -1 : 1;
    return one->from < two->from ? -1 : one->from > two->from;
}

static uint64_t gauge_key(CUdevice ordinal)
{
    return (uint64_t)ordinal + 1;
}

/* A part whose device the quota does not list has no position, and is refused when it is launched. */
static bool enter_part(uint64_t key, CUdevice ordinal, uint64_t bytes)
{
    struct target to;
    if (!target_device(ordinal, &to))
        return false;
    gauge_watch(ITEM_GRAPHS, gauge_key(ordinal), to.position);
    return item_put(&(struct item){.kind = ITEM_EXEC,
                                   .key = key,
                                   .other = round_capped(bytes, POOL_STEP),
                                   .ordinal = (uint8_t)ordinal,
                                   .position = (uint8_t)to.position});
}

static int take_parts(CUgraphExec exec, struct item items[PARTS])
{
    int count = 0;
    while (count < PARTS &&
           item_take(ITEM_EXEC, (uint64_t)(uintptr_t)exec + (unsigned int)count, &items[count]))
        count++;
    return count;
}

/* Nodes that live one after the other have the same addresses, so the union of these is what they take. False: there is
 * no room in the books, or it is on too many devices. */
static bool enter_parts(CUgraphExec exec, struct footprint *all)
{
    uint64_t key = (uint64_t)(uintptr_t)exec, last = key + PARTS;
    if (all->count)
        qsort(all->pieces, all->count, sizeof(*all->pieces), compare);
    for (size_t i = 0; i < all->count;) {
        CUdevice ordinal = all->pieces[i].ordinal;
        uint64_t sum = 0, end = 0;
        for (; i < all->count && all->pieces[i].ordinal == ordinal; i++) {
            uint64_t from = all->pieces[i].from > end ? all->pieces[i].from : end;
            if (all->pieces[i].to > from)
                sum += all->pieces[i].to - from;
            end = all->pieces[i].to > end ? all->pieces[i].to : end;
        }
        if (key == last || !enter_part(key++, ordinal, sum))
            return false;
    }
    return true;
}

static CUresult enter(CUgraphExec exec, CUgraph graph, struct footprint *all)
{
    struct item items[PARTS];
    if (enter_parts(exec, all)) {
        graph_devices_enter(exec, graph);
        if (all->count)
            atomic_fetch_add(&process()->graphs, 1);
        return CUDA_SUCCESS;
    }
    take_parts(exec, items);
    REAL(cuGraphExecDestroy)(exec);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(name, parameters, arguments)                                                            \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        struct footprint all;                                                                               \
        CUresult result = measure(&all, graph);                                                             \
        if (result == CUDA_SUCCESS)                                                                         \
            result = REAL(name) arguments;                                                                  \
        if (result == CUDA_SUCCESS)                                                                         \
            result = enter(*out, graph, &all);                                                              \
        free(all.pieces);                                                                                   \
        return result;                                                                                      \
    }

INSTANTIATE(cuGraphInstantiate, (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (out, graph, bad, log, size))
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (out, graph, bad, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags),
            (out, graph, flags))

static bool ask_store(CUdevice ordinal, int attribute, uint64_t *bytes)
{
    return REAL(cuDeviceGetGraphMemAttribute)(ordinal, attribute, bytes) == CUDA_SUCCESS;
}

/* Graphs that do not free what they allocate hold it in the store, also when the store is trimmed. */
static bool has_unused(const struct item *exec)
{
    uint64_t used, reserved;
    return ask_store(exec->ordinal, CU_GRAPH_MEMORY_USED, &used) &&
           ask_store(exec->ordinal, CU_GRAPH_MEMORY_RESERVED, &reserved) && reserved >= used &&
           reserved - used >= exec->other;
}

/* The store may hold the graph's memory already. */
static bool is_backed(const struct item *exec)
{
    struct item store;
    uint64_t launched = 0;
    if (!item_get(ITEM_GRAPHS, gauge_key(exec->ordinal), &store) || !has_unused(exec))
        return false;
    items_lock();
    for (uint64_t slot = 0; slot < item_slots(); slot++) {
        const struct item *other = item_at(slot);
        if (other && other->kind == ITEM_EXEC && other->count && other->position == exec->position)
            launched += other->other;
    }
    items_unlock();
    return store.bytes >= launched + exec->other;
}

struct part {
    struct item item;
    uint64_t reserved;
};

/* False: it does not fit. What other graphs have left behind may do. */
static bool reserve(struct part *part)
{
    const struct item *item = &part->item;
    part->reserved = item->count || is_backed(item) ? 0 : item->other;
    if (!part->reserved || charge(item->position, part->reserved) ||
        (cuDeviceGraphMemTrim(item->ordinal) == CUDA_SUCCESS && charge(item->position, part->reserved)))
        return true;
    part->reserved = 0;
    return false;
}

static void settle_part(const struct part *part, bool launched)
{
    gauge_read(ITEM_GRAPHS, gauge_key(part->item.ordinal));
    if (part->reserved)
        account_withdraw(part->item.position, part->reserved);
    items_lock();
    struct item *now = launched ? item_find(ITEM_EXEC, part->item.key) : NULL;
    if (now)
        now->count = 1;
    items_unlock();
}

static CUresult launch(CUgraphExec handle, CUstream stream, CUresult (*call)(CUgraphExec, CUstream))
{
    struct process *in = process();
    struct part parts[PARTS];
    int count = 0;
    bool fits = true;
    if (!in || !atomic_load_explicit(&in->graphs, memory_order_relaxed))
        return call(handle, stream);
    while (fits && count < PARTS &&
           item_get(ITEM_EXEC, (uint64_t)(uintptr_t)handle + (unsigned int)count, &parts[count].item))
        fits = reserve(&parts[count++]);
    CUresult result = fits ? call(handle, stream) : CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < count; i++)
        settle_part(&parts[i], result == CUDA_SUCCESS);
    return result;
}

static CUresult launch_by(CUgraphExec exec, CUstream stream, void *call)
{
    return launch(exec, stream, *(CUresult(**)(CUgraphExec, CUstream))call);
}

static CUresult pass_and_launch(CUgraphExec exec, CUstream stream, bool per_thread,
                                CUresult (*call)(CUgraphExec, CUstream))
{
    return graph_devices_launch(exec, stream, per_thread, launch_by, &call);
}

CU_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return window_is_open() ? launch(exec, stream, REAL(cuGraphLaunch))
                            : pass_and_launch(exec, stream, false, REAL(cuGraphLaunch));
}

CU_API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return window_is_open() ? launch(exec, stream, REAL(cuGraphLaunch_ptsz))
                            : pass_and_launch(exec, stream, true, REAL(cuGraphLaunch_ptsz));
}

CU_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, REAL(cuGraphUpload));
}

CU_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, REAL(cuGraphUpload_ptsz));
}

/* Uploads, which takes the memory, once the instance is in the books. */
static CUresult instantiate_with(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *more,
                                 CUresult (*call)(CUgraphExec *, CUgraph, void *),
                                 CUresult (*upload)(CUgraphExec, CUstream))
{
    struct footprint all;
    unsigned long long flags = more ? more->flags : 0;
    CUresult result = measure(&all, graph);
    if (more)
        more->flags &= ~(unsigned long long)CU_INSTANTIATE_UPLOAD;
    if (result == CUDA_SUCCESS)
        result = call(out, graph, more);
    if (more)
        more->flags = flags;
    if (result == CUDA_SUCCESS)
        result = enter(*out, graph, &all);
    free(all.pieces);
    if (result == CUDA_SUCCESS && flags & CU_INSTANTIATE_UPLOAD) {
        result = launch(*out, more->hUploadStream, upload);
        if (result != CUDA_SUCCESS)
            cuGraphExecDestroy(*out);
    }
    return result;
}

CU_API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *more)
{
    return instantiate_with(out, graph, more, REAL(cuGraphInstantiateWithParams), REAL(cuGraphUpload));
}

CU_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *more)
{
    return instantiate_with(out, graph, more, REAL(cuGraphInstantiateWithParams_ptsz),
                            REAL(cuGraphUpload_ptsz));
}

static void read_all_stores(void)
{
    struct process *in = process();
    int count = 0;
    if (!in || !atomic_load_explicit(&in->gauges, memory_order_relaxed) ||
        REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return;
    for (CUdevice ordinal = 0; ordinal < count; ordinal++)
        gauge_read(ITEM_GRAPHS, gauge_key(ordinal));
}

CU_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct item items[PARTS];
    int count = take_parts(exec, items);
    graph_devices_leave(exec);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    for (int i = 0; i < count && result != CUDA_SUCCESS; i++)
        item_put(&items[i]);
    if (count && result == CUDA_SUCCESS) {
        atomic_fetch_sub(&process()->graphs, 1);
        read_all_stores();
    }
    return result;
}

CU_API CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = REAL(cuGraphDestroy)(graph);
    read_all_stores();
    return result;
}

/* Graphs that ran have to take their memory again, the next time. Where none was given back, they still have it. */
CU_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct target to;
    uint64_t before = 0, after = 0;
    bool known = ask_store(device, CU_GRAPH_MEMORY_RESERVED, &before);
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS || !target_device(device, &to))
        return result;
    if (known && ask_store(device, CU_GRAPH_MEMORY_RESERVED, &after) && after >= before)
        return result;
    items_lock();
    for (uint64_t slot = 0; slot < item_slots(); slot++) {
        struct item *item = item_at(slot);
        if (item && item->kind == ITEM_EXEC && item->position == to.position)
            item->count = 0;
    }
    items_unlock();
    gauge_read(ITEM_GRAPHS, gauge_key(device));
    return result;
}
