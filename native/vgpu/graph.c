/* Memory nodes of graphs. The driver takes their memory at the first launch, from a store of its own that it tells the
 * size of. So a launch reserves what its nodes can take together; afterwards that size counts. */
#include "charge.h"
#include "gauge.h"
#include "graph_devices.h"
#include "local.h"

#include <stdlib.h>

enum { MAX_NODES = 1 << 20, MAX_DEPTH = 8 };

/* Handles are addresses of structures: next to that of an instance are keys for its parts on other devices. */
enum { PARTS = 16 };

struct piece {
    uint64_t from, to;
    CUdevice ordinal;
};

struct footprint {
    struct piece *pieces;
    size_t count, room;
};

static void add_piece(struct footprint *in, CUdevice ordinal, uint64_t from, uint64_t size)
{
    if (in->count == in->room) {
        size_t room = in->room ? in->room * 2 : 64;
        struct piece *more = realloc(in->pieces, room * sizeof(*more));
        if (!more)
            return;
        in->pieces = more;
        in->room = room;
    }
    in->pieces[in->count++] = (struct piece){from / PAGE * PAGE, round_capped(from + size, PAGE), ordinal};
}

static void add_graph(struct footprint *in, CUgraph graph, int depth)
{
    size_t count = 0;
    if (depth > MAX_DEPTH || REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count ||
        count > MAX_NODES)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (!nodes || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        CUgraph child;
        int type = -1;
        if (REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_NODE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS) {
            add_graph(in, child, depth + 1);
        } else if (type == CU_NODE_ALLOC &&
                   REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &allocation) == CUDA_SUCCESS) {
            add_piece(in, allocation.poolProps.location.id, allocation.dptr, allocation.bytesize);
        }
    }
    free(nodes);
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

/* Nodes that live one after the other have the same addresses, so the union of these is what they take. */
static void enter(CUgraphExec exec, CUgraph graph)
{
    struct process *in = process();
    struct footprint all = {0};
    uint64_t key = (uint64_t)(uintptr_t)exec, last = key + PARTS;
    if (!in)
        return;
    add_graph(&all, graph, 0);
    if (all.count)
        qsort(all.pieces, all.count, sizeof(*all.pieces), compare);
    for (size_t i = 0; i < all.count && key < last;) {
        CUdevice ordinal = all.pieces[i].ordinal;
        uint64_t sum = 0, end = 0;
        for (; i < all.count && all.pieces[i].ordinal == ordinal; i++) {
            uint64_t from = all.pieces[i].from > end ? all.pieces[i].from : end;
            if (all.pieces[i].to > from)
                sum += all.pieces[i].to - from;
            end = all.pieces[i].to > end ? all.pieces[i].to : end;
        }
        if (enter_part(key, ordinal, sum) && ++key == (uint64_t)(uintptr_t)exec + 1)
            atomic_fetch_add(&in->graphs, 1);
    }
    free(all.pieces);
}

#define INSTANTIATE(name, parameters, arguments)                                                            \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CUresult result = REAL(name) arguments;                                                             \
        if (result == CUDA_SUCCESS) {                                                                       \
            enter(*out, graph);                                                                             \
            graph_devices_enter(*out, graph);                                                               \
        }                                                                                                   \
        return result;                                                                                      \
    }

INSTANTIATE(cuGraphInstantiate, (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (out, graph, bad, log, size))
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (out, graph, bad, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags),
            (out, graph, flags))
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec * out, CUgraph graph, void *more), (out, graph, more))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * out, CUgraph graph, void *more),
            (out, graph, more))

/* The store may hold the graph's memory already. */
static bool is_backed(const struct item *exec)
{
    struct item store;
    uint64_t launched = 0;
    if (!item_get(ITEM_GRAPHS, gauge_key(exec->ordinal), &store))
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
        (REAL(cuDeviceGraphMemTrim)(item->ordinal) == CUDA_SUCCESS &&
         charge(item->position, part->reserved)))
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
    int count = 0;
    while (count < PARTS &&
           item_take(ITEM_EXEC, (uint64_t)(uintptr_t)exec + (unsigned int)count, &items[count]))
        count++;
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

/* Graphs that ran have to take their memory again, the next time. */
CU_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct target to;
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS || !target_device(device, &to))
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

static bool kernel_allowed(const CUgraphNodeParams *params)
{
    return !params || params->type != CU_NODE_KERNEL || local_allows(params->kernel.func);
}

CU_API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                               CUgraphNodeParams *params)
{
    if (!kernel_allowed(params))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuGraphAddNode)(out, graph, needs, count, params);
}

CU_API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs,
                                  const void *edges, size_t count, CUgraphNodeParams *params)
{
    if (!kernel_allowed(params))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuGraphAddNode_v2)(out, graph, needs, edges, count, params);
}
