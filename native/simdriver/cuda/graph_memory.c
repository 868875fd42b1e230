/* Memory that graphs own, and objects of the program that live as long as a graph does.
 *
 * It comes from a store of its own on each device, which keeps what it has until it is trimmed. A node has its address
 * when it is made and its memory with the first launch; both are free again with the graph and its instances. */
#include "graph.h"

#include "engine.h"
#include "pool.h"

#include <limits.h>
#include <stdlib.h>

enum { USED, USED_HIGH, RESERVED, RESERVED_HIGH };

static CUresult store_of(struct device *device, struct pool **out)
{
    if (!device->graph_pool) {
        CU_TRY(pool_create(device, &device->graph_pool));
        device->graph_pool->threshold = UINT64_MAX;
        device->graph_pool->lazy = true;
    }
    *out = device->graph_pool;
    return CUDA_SUCCESS;
}

CUresult graph_add_allocation(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                              CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct pool *pool;
    struct memory *memory;
    CU_CONTEXT(context);
    CU_ARGUMENT(out && graph_of(graph) && params && params->bytesize);
    CU_ARGUMENT(params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    struct device *device = device_at(params->poolProps.location.id);
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_TRY(store_of(device, &pool));
    CU_TRY(pool_allocate(pool, params->bytesize, context->legacy, &memory));
    CUresult result = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, NULL, needs, count, out);
    if (result != CUDA_SUCCESS) {
        pool_free(memory);
        return result;
    }
    memory->context = NULL; /* the graph's */
    (*out)->memory = memory;
    (*out)->address = params->dptr = memory->range.base;
    return CUDA_SUCCESS;
}

CUresult graph_add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                        CUdeviceptr address)
{
    const struct memory *memory = memory_find(address);
    CU_ARGUMENT(out && graph_of(graph) && memory && memory->range.base == address);
    CU_TRY(graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, NULL, needs, count, out));
    (*out)->address = address;
    return CUDA_SUCCESS;
}

static CUresult get_allocation(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
    CU_ARGUMENT(node_of(node) && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->memory && out);
    *out = (CUDA_MEM_ALLOC_NODE_PARAMS){.bytesize = node->memory->range.size, .dptr = node->address};
    out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    out->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, node->memory->device->ordinal};
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out),
          get_allocation(node, out))

static CUresult get_free(CUgraphNode node, CUdeviceptr *out)
{
    CU_ARGUMENT(node_of(node) && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && out);
    *out = node->address;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphMemFreeNodeGetParams, (CUgraphNode node, CUdeviceptr *out), get_free(node, out))

static CUresult trim(struct device *device)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    if (device->graph_pool)
        pool_trim(device->graph_pool, 0);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGraphMemTrim, (CUdevice device), trim(device_at(device)))

static CUresult get_attribute(struct device *device, int attribute, uint64_t *value)
{
    static const struct pool none;
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_ARGUMENT(value && attribute >= USED && attribute <= RESERVED_HIGH);
    const struct pool *pool = device->graph_pool ? device->graph_pool : &none;
    *value = attribute == USED        ? pool->used
             : attribute == USED_HIGH ? pool->used_high
             : attribute == RESERVED  ? pool->reserved
                                      : pool->reserved_high;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, void *value),
          get_attribute(device_at(device), attribute, value))

/* The high-water marks can only be reset. */
static CUresult set_attribute(struct device *device, int attribute, const uint64_t *value)
{
    CU_REQUIRE(device, CUDA_ERROR_INVALID_DEVICE);
    CU_ARGUMENT(value && *value == 0 && (attribute == USED_HIGH || attribute == RESERVED_HIGH));
    if (device->graph_pool && attribute == USED_HIGH)
        device->graph_pool->used_high = device->graph_pool->used;
    else if (device->graph_pool)
        device->graph_pool->reserved_high = device->graph_pool->reserved;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuDeviceSetGraphMemAttribute, (CUdevice device, int attribute, void *value),
          set_attribute(device_at(device), attribute, value))

struct user_object {
    CUhostFn destroy;
    void *argument;
    unsigned int references;
};

/* References to an object that a graph has. */
struct held_object {
    struct held_object *next;
    struct user_object *object;
    unsigned int count;
};

static CUresult create(CUuserObject *out, void *argument, CUhostFn destroy, unsigned int count,
                       unsigned int flags)
{
    CU_ARGUMENT(out && destroy && count && count <= INT_MAX && flags == 1);
    struct user_object *object = handle_new(KIND_USER_OBJECT, sizeof(*object));
    CU_REQUIRE(object, CUDA_ERROR_OUT_OF_MEMORY);
    *object = (struct user_object){destroy, argument, count};
    *out = object;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuUserObjectCreate,
          (CUuserObject * out, void *argument, CUhostFn destroy, unsigned int count, unsigned int flags),
          create(out, argument, destroy, count, flags))

static CUresult retain(CUuserObject object, unsigned int count)
{
    CU_ARGUMENT(handle_is(object, KIND_USER_OBJECT) && count && count <= INT_MAX - object->references);
    object->references += count;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuUserObjectRetain, (CUuserObject object, unsigned int count), retain(object, count))

/* The destructor may not call the driver, so it may run with the lock held. */
static CUresult release(CUuserObject object, unsigned int count)
{
    CU_ARGUMENT(handle_is(object, KIND_USER_OBJECT) && count && count <= object->references);
    object->references -= count;
    if (object->references == 0) {
        object->destroy(object->argument);
        handle_free(object);
    }
    return CUDA_SUCCESS;
}

CU_EXPORT(cuUserObjectRelease, (CUuserObject object, unsigned int count), release(object, count))

/* With flag 1 the program's own references move to the graph. */
static CUresult graph_retain(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    CU_ARGUMENT(graph_of(graph) && handle_is(object, KIND_USER_OBJECT) && count && flags <= 1);
    struct held_object *held = malloc(sizeof(*held));
    CU_REQUIRE(held, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = flags ? CUDA_SUCCESS : retain(object, count);
    if (result != CUDA_SUCCESS) {
        free(held);
        return result;
    }
    *held = (struct held_object){graph->held, object, count};
    graph->held = held;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuGraphRetainUserObject,
          (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags),
          graph_retain(graph, object, count, flags))

static CUresult graph_release_object(CUgraph graph, CUuserObject object, unsigned int count)
{
    CU_ARGUMENT(graph_of(graph) && count);
    for (struct held_object **at = &graph->held; *at; at = &(*at)->next) {
        struct held_object *held = *at;
        if (held->object != object || held->count < count)
            continue;
        held->count -= count;
        if (held->count == 0) {
            *at = held->next;
            free(held);
        }
        return release(object, count);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CU_EXPORT(cuGraphReleaseUserObject, (CUgraph graph, CUuserObject object, unsigned int count),
          graph_release_object(graph, object, count))

void graph_drop_objects(struct graph *graph)
{
    for (struct held_object *held; (held = graph->held) != NULL;) {
        graph->held = held->next;
        release(held->object, held->count);
        free(held);
    }
}
