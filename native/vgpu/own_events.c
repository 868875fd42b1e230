/* The driver gives a new event the handle of one that was destroyed. A program that keeps the handle of an event that it has
 * destroyed could so record, or destroy, a mark of the shim's in its place, and what is behind that mark would seem not to
 * have begun. Such a handle is one of no event of the program's, which is what it is told. */
#include "own_events.h"

#include "process.h"

enum { ROOM = 32768, FULL = ROOM / 4 * 3 };

#define WAS UINT64_MAX /* where one was, in the table */

/* `context` is written before `event`, under the lock. */
static struct {
    _Atomic uint64_t event;
    uint64_t context;
} own[ROOM];

static struct lock changing;
static _Atomic uint32_t used; /* places of the table that are not 0 */

static uint32_t place_of(uint64_t event)
{
    return (uint32_t)((event * UINT64_C(0x9e3779b97f4a7c15)) >> 49);
}

/* ROOM: it is not there. */
static uint32_t find(uint64_t event)
{
    uint32_t at = place_of(event);
    for (uint32_t step = 0; step < ROOM; step++, at = (at + 1) % ROOM) {
        uint64_t found = atomic_load_explicit(&own[at].event, memory_order_acquire);
        if (found == event)
            return at;
        if (!found)
            break;
    }
    return ROOM;
}

bool own_event_is(CUevent event)
{
    return event && atomic_load_explicit(&used, memory_order_acquire) &&
           find((uint64_t)(uintptr_t)event) != ROOM;
}

bool own_event_add(CUevent event, uint64_t context)
{
    uint64_t key = (uint64_t)(uintptr_t)event;
    lock_take(&changing);
    uint32_t at = place_of(key);
    for (uint64_t found; (found = own[at].event) && found != WAS && found != key; at = (at + 1) % ROOM)
        ;
    bool more = !own[at].event, room = !more || used < FULL;
    if (room) {
        own[at].context = context;
        atomic_store_explicit(&own[at].event, key, memory_order_release);
        used += more;
    }
    lock_drop(&changing);
    return room;
}

void own_events_end(uint64_t context)
{
    bool some = false;
    lock_take(&changing);
    for (uint32_t i = 0; used && i < ROOM; i++) {
        if (own[i].event && own[i].event != WAS && own[i].context == context)
            own[i].event = WAS;
        some |= own[i].event && own[i].event != WAS;
    }
    for (uint32_t i = 0; !some && used && i < ROOM; i++)
        own[i].event = 0;
    used = some ? used : 0;
    lock_drop(&changing);
}

enum { ANY = 0 };

void own_event_end(CUevent event, uint64_t context)
{
    lock_take(&changing);
    uint32_t at = find((uint64_t)(uintptr_t)event);
    if (at != ROOM && (context == ANY || own[at].context == context)) {
        own[at].event = WAS;
        if (!own[(at + 1) % ROOM].event) /* nothing is to be found behind it */
            for (; own[at].event == WAS; at = (at + ROOM - 1) % ROOM, used--)
                own[at].event = 0;
    }
    lock_drop(&changing);
}

CU_API CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    CUevent made = NULL; /* another thread may change what the program has */
    CUresult result = REAL(cuEventCreate)(event ? &made : NULL, flags);
    if (result != CUDA_SUCCESS)
        return result;
    if (atomic_load_explicit(&used, memory_order_acquire))
        own_event_end(made, ANY); /* if it was one of ours, that ended without our knowing */
    *event = made;
    return result;
}

#define REFUSE(name, parameters, arguments, event)                                                          \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        return own_event_is(event) ? CUDA_ERROR_INVALID_HANDLE : REAL(name) arguments;                      \
    }

REFUSE(cuEventDestroy, (CUevent event), (event), event)
REFUSE(cuEventDestroy_v2, (CUevent event), (event), event)
REFUSE(cuEventRecord, (CUevent event, CUstream stream), (event, stream), event)
REFUSE(cuEventRecord_ptsz, (CUevent event, CUstream stream), (event, stream), event)
REFUSE(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags), (event, stream, flags),
       event)
REFUSE(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags),
       (event, stream, flags), event)
REFUSE(cuCtxRecordEvent, (CUcontext context, CUevent event), (context, event), event)
REFUSE(cuGreenCtxRecordEvent, (CUgreenCtx context, CUevent event), (context, event), event)
REFUSE(cuGraphAddEventRecordNode,
       (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, size_t count, CUevent event),
       (out, graph, needs, count, event), event)
REFUSE(cuGraphEventRecordNodeSetEvent, (CUgraphNode node, CUevent event), (node, event), event)
REFUSE(cuGraphExecEventRecordNodeSetEvent, (CUgraphExec exec, CUgraphNode node, CUevent event),
       (exec, node, event), event)
