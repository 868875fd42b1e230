/* Clients of nvcd that send what they like, to be compiled with sanitizers and native/core/handover: `handover_tool FRAMES SEED`. */
#include "../../native/core/handover/handover.h"
#include "../../native/vgpu/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DEVICES = 2, TENANTS = 3 };

static uint64_t state;

static uint64_t chance(uint64_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static void check(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* Mostly what is in order, with one field that is not now and then. */
static size_t frame(const struct nvc_handover_device *device, unsigned char *out)
{
    struct nvcd_message message = {.kind = NVCD_RELEASE, .round = device->round, .b = chance(2) * NVCD_RUNS};
    memcpy(message.uuid, device->uuid, 16);
    message.b += chance(3) ? chance(5000000) * NVCD_TAIL : 0;
    if (chance(4) == 0)
        ((unsigned char *)&message)[chance(sizeof(message))] = (unsigned char)chance(256);
    memcpy(out, &message, sizeof(message));
    return chance(20) ? sizeof(message) : chance(60);
}

int main(int count, char **words)
{
    static struct nvc_handover_tenant tenants[DEVICES][TENANTS];
    struct nvc_handover_device devices[DEVICES];
    struct nvc_handover handover = {.devices = devices, .count = DEVICES, .epoll = epoll_create1(0)};
    int clients[DEVICES][TENANTS];
    uint64_t frames = count > 2 ? strtoull(words[1], NULL, 10) : 0, taken = 0, grants = 0, granted = 0;
    struct timespec begun;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    int64_t now = (int64_t)begun.tv_sec * 1000000000 + begun.tv_nsec;
    state = count > 2 ? strtoull(words[2], NULL, 10) * 2 + 1 : 1;
    for (int i = 0; i < DEVICES; i++) {
        devices[i] = (struct nvc_handover_device){.tenants = tenants[i],
                                                  .count = TENANTS,
                                                  .leader = -1,
                                                  .round = UINT32_MAX - 9,
                                                  .deadline = INT64_MAX,
                                                  .began = now,
                                                  .charged_until = now,
                                                  .grace = 1000000,
                                                  .debt = 30000000000};
        memset(devices[i].uuid, i + 1, 16);
        for (int j = 0; j < TENANTS; j++) {
            int pair[2];
            check(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) == 0, "no sockets");
            clients[i][j] = pair[1];
            struct epoll_event event = {.events = EPOLLIN, .data.fd = pair[0]};
            check(epoll_ctl(handover.epoll, EPOLL_CTL_ADD, pair[0], &event) == 0, "no epoll");
            tenants[i][j] = (struct nvc_handover_tenant){.weight = 1 + (int64_t)chance(16),
                                                         .length = 1000000,
                                                         .fd = pair[0],
                                                         .tokens = UINT32_MAX,
                                                         .follower = -1};
        }
    }
    for (uint64_t sent = 0; sent < frames; sent++) {
        struct nvc_handover_device *device = &devices[chance(DEVICES)];
        unsigned char bytes[64] = {0};
        int place = (int)(device - devices), from = chance(5) ? device->holder : (int)chance(TENANTS);
        size_t size = frame(device, bytes);
        check(send(clients[place][from], bytes, size, 0) == (ssize_t)size, "not sent");
        device->deadline = INT64_MAX;
        check(nvc_handover_serve(&handover, 0) == 0, "serve failed");
        check(handover.failed == -1 && handover.ready_count <= 1, "more than was sent");
        taken += handover.messages;
        for (int i = 0; i < handover.ready_count; i++)
            check(recv(handover.ready[i], bytes, sizeof(bytes), 0) == (ssize_t)size, "not left there");
        for (int i = 0; i < DEVICES; i++)
            for (int j = 0; j < TENANTS; j++)
                while (recv(clients[i][j], bytes, sizeof(bytes), 0) == sizeof(struct nvcd_message))
                    granted++;
        check(device->holder >= 0 && device->holder < TENANTS && device->leader < TENANTS && device->round,
              "out of bounds");
    }
    for (int i = 0; i < DEVICES; i++)
        for (int j = 0; j < TENANTS; j++)
            grants += tenants[i][j].grants;
    check(taken == grants && granted == grants && grants > frames / 4, "not each was granted");
    printf("%llu\n", (unsigned long long)grants);
    return 0;
}
