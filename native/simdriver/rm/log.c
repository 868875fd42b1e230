/* The switch log: from the engines' ring in the state to the event buffers that are bound to it. */
#include "server.h"

#include <signal.h>
#include <string.h>
#include <time.h>

enum { TYPE_SWITCH = 2, TAG_START = 6, TAG_END = 7, UNFINISHED = 1024, MOST = 64, VIRTUAL_NS = 5000000 };

/* Calls for each buffer that is there. */
static void each_buffer(struct server *server, void (*visit)(struct server *, struct buffer *, void *),
                        void *data)
{
    for (struct client *client = server->clients; client; client = client->next)
        for (struct object *object = client->objects; object; object = object->next)
            if (object->buffer)
                visit(server, object->buffer, data);
}

struct news {
    const struct sim_region *region;
    uint16_t sequence;
};

static void put(struct server *server, struct buffer *buffer, void *data)
{
    const struct news *news = data;
    uint32_t partition = atomic_load(&news->region->partition), after = (buffer->put + 1) % buffer->count;
    (void)server;
    if (!buffer->bound || !buffer->enabled || buffer->gpu != partition / (1 + SIM_MAX_MIG))
        return;
    buffer->news = true;
    if (after == buffer->get) {
        buffer->dropped++;
        return;
    }
    struct rm_log_record record = {
        .type = TYPE_SWITCH,
        .tag = atomic_load(&news->region->begins) ? TAG_START : TAG_END,
        .sequence = news->sequence,
        .context = atomic_load(&news->region->group),
        .pid = atomic_load(&news->region->pid),
        .time = atomic_load(&news->region->time) + RM_TIMER_AHEAD_NS,
    };
    memcpy(buffer->records->bytes + buffer->put * sizeof(record), &record, sizeof(record));
    buffer->put = after;
}

static void skip(struct server *server, uint64_t count)
{
    server->read += count;
    for (uint32_t gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
        server->sequence[gpu] = (uint16_t)(server->sequence[gpu] + count);
}

/* Who is stopped while it has nothing to do does not say so. */
static void end_stopped(struct server *server, uint64_t now)
{
    struct sim_rm *rm = &server->state->rm;
    for (uint32_t gpu = 0; gpu < server->root.description.gpu_count; gpu++) {
        uint32_t partition = sim_partition_of(gpu, -1), active = atomic_load(&rm->active[partition]);
        uint64_t next;
        if (!active || active > SIM_GROUPS)
            continue;
        const struct sim_group *group = &rm->groups[active - 1];
        if (sim_group_is_stopped(group, now, &next))
            sim_active_end(rm, partition, active - 1, sim_group_since(group, now));
    }
}

/* What engines wrote up to now: they work ahead by the length of a switch. */
static void take(struct server *server, uint64_t now)
{
    const struct sim_rm *rm = &server->state->rm;
    uint64_t written = atomic_load(&rm->regions_written);
    if (written - server->read > SIM_REGIONS)
        skip(server, written - server->read - SIM_REGIONS);
    while (server->read < written) {
        const struct sim_region *region = &rm->regions[server->read % SIM_REGIONS];
        if (atomic_load(&region->number) != server->read + 1) {
            if (atomic_load(&region->number) < server->read + 1 && written - server->read < UNFINISHED)
                break;
            skip(server, 1); /* its writer was killed, or it was overwritten */
            continue;
        }
        if (atomic_load(&region->time) > now)
            break;
        uint32_t gpu = atomic_load(&region->partition) / (1 + SIM_MAX_MIG);
        server->read++;
        if (gpu >= SIM_MAX_GPUS)
            continue;
        struct news news = {region, server->sequence[gpu]++};
        if (server->drop)
            server->drop--;
        else
            each_buffer(server, put, &news);
    }
}

struct shown {
    struct memory *memories[MOST];
    uint32_t count;
    bool headers;
};

static void collect(struct server *server, struct buffer *buffer, void *data)
{
    struct shown *shown = data;
    (void)server;
    if (!buffer->news || shown->count == MOST)
        return;
    if (shown->headers) {
        struct rm_log_header header = {.get = buffer->get, .put = buffer->put, .dropped = buffer->dropped};
        memcpy(buffer->header->bytes, &header, sizeof(header));
        buffer->news = false;
    }
    shown->memories[shown->count++] = shown->headers ? buffer->header : buffer->records;
}

/* Mappings see what is there now. Records first: who sees a header sees the records that it counts. */
static void show(struct server *server, bool headers)
{
    struct shown shown = {.headers = headers};
    uint64_t numbers[MOST];
    uint32_t count = 0;
    pthread_mutex_lock(&server->lock);
    each_buffer(server, collect, &shown);
    for (const struct node *node = server->nodes; node; node = node->next)
        for (uint32_t i = 0; node->memory && i < shown.count && count < MOST; i++)
            if (node->memory == shown.memories[i])
                numbers[count++] = node->number;
    pthread_mutex_unlock(&server->lock);
    while (count)
        node_invalidate(server, numbers[--count]);
}

void log_update(struct server *server, bool drain)
{
    pthread_mutex_lock(&server->draining);
    pthread_mutex_lock(&server->lock);
    uint64_t now = clock_now(server);
    if (drain) {
        end_stopped(server, now);
        take(server, now);
        server->drained = now;
    }
    pthread_mutex_unlock(&server->lock);
    show(server, false);
    show(server, true);
    pthread_mutex_unlock(&server->draining);
}

/* The driver looks each 33 ms. Virtual time is read now and then. */
void *log_main(void *argument)
{
    struct server *server = argument;
    struct timespec pause = {.tv_nsec = server->world ? VIRTUAL_NS : RM_DRAIN_NS};
    for (;;) {
        nanosleep(&pause, NULL);
        if (clock_now(server) - server->drained >= RM_DRAIN_NS)
            log_update(server, true);
    }
    return NULL;
}
