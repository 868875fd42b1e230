/* Memory nodes of graphs. The driver takes their memory at the first launch, from a store of its own that it tells the
 * size of. So a launch reserves what its nodes can take together; afterwards that size counts. */
#include "process/capture.h"
#include "charge/resident.h"
#include "time/gate.h"
#include "charge/gauge.h"
#include "graph_footprint.h"

#include <stdlib.h>

/* `count` of an instance is 1 from its launch until the store is trimmed, and `small` from then on in any case. `mark` of
 * the store is what instances that are gone may have left in it. Handles are addresses of structures: next to that of an
 * instance are keys for its parts on other devices. */
enum { PARTS = 16, STEP_US = 1000, PATIENCE_NS = 1000000000 };

/* While a graph is instantiated and looked into, none goes: its handle could be the next one's. */
#define TURN offsetof(struct process, graph_turn)

/* While a launch counts on what the store has, nobody takes that. */
#define STORE offsetof(struct process, graph_store)

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
    if (to.position != NO_POSITION && !gauge_watch(ITEM_GRAPHS, gauge_key(ordinal), to.position))
        return false;
    return item_put(&(struct item){.kind = ITEM_EXEC,
                                   .key = key,
                                   .other = round_capped(bytes, POOL_STEP),
                                   .ordinal = (uint8_t)ordinal,
                                   .position = (uint8_t)to.position});
}

static int take_parts(CUgraphExec exec, struct item items[PARTS])
{
    int count = 0;
    while (count < PARTS && item_take(ITEM_EXEC, KEY(exec) + (unsigned int)count, &items[count]))
        count++;
    return count;
}

/* Nodes that live one after the other have the same addresses, so the union of these is what they take. False: there is
 * no room in the books, or it is on too many devices. */
static bool enter_parts(CUgraphExec exec, struct footprint *all)
{
    uint64_t key = KEY(exec), last = key + PARTS;
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

/* Another thread may add nodes until the driver has made the instance. Nodes with memory stay in a graph, so that what it is
 * then has all that the instance has. */
static CUresult entered(const CUgraphExec *exec, CUgraph graph, CUresult result)
{
    struct item items[PARTS];
    struct footprint all = {0};
    if (result != CUDA_SUCCESS)
        return result;
    result = footprint_measure(&all, graph);
    if (result == CUDA_SUCCESS && !enter_parts(*exec, &all)) {
        take_parts(*exec, items);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        atomic_fetch_add(&process()->graphs, all.count != 0);
    else
        REAL(cuGraphExecDestroy)(*exec);
    free(all.pieces);
    return result;
}

#define INSTANTIATE(name, parameters, arguments)                                                            \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        CUgraphExec made = NULL, *place = out ? &made : NULL;                                               \
        CUresult result = HELD(IN_TURN(TURN, entered(&made, graph, REAL(name) arguments)));                 \
        return HAND_OUT(out, made, result);                                                                 \
    }

INSTANTIATE(cuGraphInstantiate, (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (place, graph, bad, log, size))
INSTANTIATE(cuGraphInstantiate_v2,
            (CUgraphExec * out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (place, graph, bad, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * out, CUgraph graph, unsigned long long flags),
            (place, graph, flags))

static bool ask_store(CUdevice ordinal, int attribute, uint64_t *bytes)
{
    return REAL(cuDeviceGetGraphMemAttribute)(ordinal, attribute, bytes) == CUDA_SUCCESS;
}

/* Bytes that a launch may take beyond what the store has. What is unused there may be in pieces that are too small. Any graph
 * may free what another one has allocated, and then have its memory: so one that ran before has its own again for certain
 * only where the store has enough for all. */
static uint64_t missing(const struct item *exec)
{
    struct item *store = item_find(ITEM_GRAPHS, gauge_key(exec->ordinal));
    uint64_t ever = 0;
    if (!exec->count || !store)
        return exec->other;
    EACH_ITEM (other)
        if (other->kind == ITEM_EXEC && other->position == exec->position && other->small)
            ever += other->other;
    return ever + store->mark > store->bytes ? exec->other : 0;
}

struct part {
    struct item item;
    uint64_t reserved;
};

static void look_into_store(struct part *part)
{
    items_lock();
    const struct item *now = item_find(ITEM_EXEC, part->item.key);
    part->item.count = now ? now->count : 0;
    part->reserved = missing(&part->item);
    items_unlock();
}

/* Graphs that ran have to take their memory again, the next time. Where none was given back, they still have it. */
static CUresult trim(CUdevice device, int position)
{
    uint64_t before = 0, after = 0;
    bool known = ask_store(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &before);
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (known && ask_store(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &after) && after >= before)
        return result;
    gauge_read(ITEM_GRAPHS, gauge_key(device));
    items_lock();
    EACH_ITEM (item)
        if (item->kind == ITEM_EXEC && item->position == position)
            item->count = 0;
    struct item *store = item_find(ITEM_GRAPHS, gauge_key(device));
    if (store)
        store->mark = least(store->mark, store->bytes); /* all that is left is in use */
    items_unlock();
    return result;
}

/* A graph that runs has its memory until it has ended. */
static bool wait_a_little(CUstream stream, uint64_t since)
{
    if (capture_has(stream) || RESIDENT(cuStreamQuery)(stream) != CUDA_ERROR_NOT_READY ||
        now_ns(CLOCK_MONOTONIC) - since > PATIENCE_NS)
        return false;
    sleep_us(STEP_US);
    return true;
}

/* False: it does not fit. What other graphs have left behind may do. */
static bool reserve(struct part *part, CUstream stream)
{
    const struct item *item = &part->item;
    uint64_t since = now_ns(CLOCK_MONOTONIC);
    if (item->position >= VGPU_DEVICES)
        return false;
    look_into_store(part);
    if (!part->reserved || charge_quietly(item->position, part->reserved))
        return true;
    part->reserved = item->other; /* once it is trimmed, the store has nothing for it */
    do {
        if (trim(item->ordinal, item->position) == CUDA_SUCCESS &&
            charge_quietly(item->position, part->reserved))
            return true;
    } while (wait_a_little(stream, since));
    charge_refused(item->position);
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
        now->count = now->small = 1;
    items_unlock();
}

static CUresult launch_parts(CUgraphExec handle, CUstream stream, type_cuGraphLaunch call)
{
    struct part parts[PARTS] = {0};
    int count = 0;
    bool fits = true;
    while (fits && count < PARTS &&
           item_get(ITEM_EXEC, KEY(handle) + (unsigned int)count, &parts[count].item))
        fits = reserve(&parts[count++], stream);
    CUresult result = fits ? call(handle, stream) : CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < count; i++)
        settle_part(&parts[i], result == CUDA_SUCCESS);
    return result;
}

/* Launches of graphs without memory wait for nobody. */
static CUresult launch(CUgraphExec handle, CUstream stream, type_cuGraphLaunch call)
{
    struct process *in = process();
    struct item item;
    bool some = in && atomic_load_explicit(&in->graphs, memory_order_relaxed) &&
                item_get(ITEM_EXEC, KEY(handle), &item);
    return some ? IN_TURN(STORE, launch_parts(handle, stream, call)) : call(handle, stream);
}

/* What a graph works for on other devices than its stream's is not measured. */
TWINS(cuGraphLaunch, (CUgraphExec exec, CUstream stream),
      PACED(stream, per_thread, launch(exec, stream, REAL_IN(per_thread, cuGraphLaunch))))
TWINS(cuGraphUpload, (CUgraphExec exec, CUstream stream),
      HELD(launch(exec, stream, REAL_IN(per_thread, cuGraphUpload))))

/* Uploads, which takes the memory, once the instance is in the books. */
static CUresult instantiate_with(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *more,
                                 bool per_thread)
{
    CUDA_GRAPH_INSTANTIATE_PARAMS own = {0}; /* another thread may change what the program has */
    CUgraphExec made = NULL;
    bool uploads = false;
    if (more) {
        own = *more;
        uploads = own.flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
        own.flags &= ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    }
    type_cuGraphInstantiateWithParams call = REAL_IN(per_thread, cuGraphInstantiateWithParams);
    CUresult result =
        IN_TURN(TURN, entered(&made, graph, call(out ? &made : NULL, graph, more ? &own : NULL)));
    if (more) {
        more->hErrNode_out = own.hErrNode_out;
        more->result_out = own.result_out;
    }
    if (result == CUDA_SUCCESS && uploads) {
        result = launch(made, own.hUploadStream, REAL_IN(per_thread, cuGraphUpload));
        if (result != CUDA_SUCCESS)
            cuGraphExecDestroy(made);
    }
    return HAND_OUT(out, made, result);
}

TWINS(cuGraphInstantiateWithParams, (CUgraphExec * out, CUgraph graph, void *more),
      HELD(instantiate_with(out, graph, more, per_thread)))

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

/* What an instance that is gone did not free is there without it. */
static void leave(const struct item *exec, CUresult result)
{
    items_lock();
    struct item *store = exec->small ? item_find(ITEM_GRAPHS, gauge_key(exec->ordinal)) : NULL;
    if (result != CUDA_SUCCESS)
        item_insert(exec);
    else if (store)
        store->mark += exec->other;
    items_unlock();
}

CU_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct item items[PARTS];
    int count = take_parts(exec, items);
    CUresult result = REAL(cuGraphExecDestroy)(exec);
    for (int i = 0; i < count; i++)
        leave(&items[i], result);
    if (count && result == CUDA_SUCCESS) {
        atomic_fetch_sub(&process()->graphs, 1);
        read_all_stores();
    }
    return result;
}

CU_API CUresult cuGraphDestroy(CUgraph graph)
{
    CUresult result = IN_TURN(TURN, REAL(cuGraphDestroy)(graph));
    read_all_stores();
    return result;
}

CU_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct target to;
    if (!process() || !target_device(device, &to) || to.position == NO_POSITION)
        return REAL(cuDeviceGraphMemTrim)(device);
    return IN_TURN(STORE, trim(device, to.position));
}
