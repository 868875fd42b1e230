/* Turns that follow each other without a decision: nvcd has laid down whose they are. A wake-up of the interpreter costs
 * several times what these three system calls do, since between two turns others have had the processor's caches. */
#include "turns.h"

#include "../../vgpu/protocol.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#define MS 1000000u

static uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t deadline_of(const struct nvc_turns *device, const struct nvc_turn *turn)
{
    return turn->ended ? turn->ended + turn[1].rest : turn->began + turn->length + device->patience;
}

static uint64_t first_deadline(const struct nvc_turns *devices, const struct nvc_turn *turns, uint32_t count,
                               uint64_t until)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t due = deadline_of(&devices[i], &turns[i * NVC_TURNS_MAX + devices[i].place]);
        until = due < until ? due : until;
    }
    return until;
}

/* The device whose turn this message gives back, which is left where it is; NULL: it is another one. */
static struct nvc_turns *given_back(int fd, struct nvc_turns *devices, struct nvc_turn *turns,
                                    uint32_t count)
{
    struct nvcd_message message;
    bool read = false;

    for (uint32_t i = 0; i < count; i++) {
        struct nvc_turns *device = &devices[i];
        const struct nvc_turn *turn = &turns[i * NVC_TURNS_MAX + device->place];
        if (turn->fd != fd || turn->ended)
            continue;
        /* With MSG_TRUNC the size is that of the whole message. */
        if (!read &&
            recv(fd, &message, sizeof(message), MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT) != sizeof(message))
            return NULL;
        read = true;
        if (message.kind == NVCD_RELEASE && !message.reserved && !message.b &&
            message.round == turn->round && memcmp(message.uuid, device->uuid, sizeof(message.uuid)) == 0)
            return device;
    }
    return NULL;
}

/* False: it did not last as long as was foreseen. */
static bool is_foreseen(struct nvc_turns *device, const struct nvc_turn *turn, uint64_t now)
{
    uint64_t held = now - turn->began;
    uint64_t drift = held > turn->foreseen ? held - turn->foreseen : turn->foreseen - held;
    if (drift > device->slack - device->drift)
        return false;
    device->drift += drift;
    return true;
}

/* False: there is something to be said of it. */
static bool begin(struct nvc_turns *device, struct nvc_turn *turn, uint64_t now)
{
    struct nvcd_message message = {.kind = NVCD_GRANT, .round = turn->round, .a = turn->length};
    memcpy(message.uuid, device->uuid, sizeof(message.uuid));
    turn->began = now;
    device->place++;
    if (send(turn->fd, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        device->error = errno;
    return !device->error && device->place + 1 < device->count;
}

/* Begins what has waited for its time. Otherwise, returned is NVC_TURNS_TIME, or NVC_TURNS_END. */
static int keep_time(struct nvc_turns *devices, struct nvc_turn *turns, uint32_t count, uint64_t now)
{
    int result = NVC_TURNS_TIME;
    for (uint32_t i = 0; i < count; i++) {
        struct nvc_turn *turn = &turns[i * NVC_TURNS_MAX + devices[i].place];
        if (!turn->ended || now < deadline_of(&devices[i], turn))
            continue;
        if (!begin(&devices[i], turn + 1, now))
            return NVC_TURNS_END;
        result = NVC_TURNS_EVENT;
    }
    return result;
}

int nvc_turns_pass(int epoll, struct nvc_turns *devices, struct nvc_turn *turns, uint32_t count,
                   uint64_t until)
{
    struct nvcd_message taken;
    struct epoll_event event;

    for (;;) {
        uint64_t now = clock_now();
        uint64_t due = first_deadline(devices, turns, count, until);
        if (now >= due) {
            int kept = keep_time(devices, turns, count, now);
            if (kept != NVC_TURNS_EVENT)
                return kept;
            continue;
        }
        uint64_t left = (due - now + MS - 1) / MS;
        int ready = epoll_wait(epoll, &event, 1, left < INT_MAX ? (int)left : INT_MAX);
        if (ready < 0)
            return errno == EINTR ? NVC_TURNS_EVENT : -errno;
        if (ready == 0)
            continue;
        struct nvc_turns *device = given_back(event.data.fd, devices, turns, count);
        if (!device)
            return NVC_TURNS_EVENT;
        struct nvc_turn *turn = &turns[(size_t)(device - devices) * NVC_TURNS_MAX + device->place];
        now = clock_now();
        if (!is_foreseen(device, turn, now))
            return NVC_TURNS_EVENT;
        if (recv(turn->fd, &taken, sizeof(taken), MSG_DONTWAIT) != sizeof(taken))
            return NVC_TURNS_EVENT;
        turn->ended = now;
        if (!turn[1].rest && !begin(device, turn + 1, now))
            return NVC_TURNS_END;
    }
}
