#include "handover.h"

#include "../../vgpu/protocol.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

enum { UNIT = 1 << 10, FORGIVEN = 64, LATE_MAX_S = 30, NS_PER_MS = 1000000 };
#define NS_PER_S INT64_C(1000000000)
#define TAIL_MAX (3600 * NS_PER_S)

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Towards less, as Python divides; `b` is more than 0. */
static int64_t divided(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static int64_t turn_of(const struct nvc_handover_tenant *tenant)
{
    return tenant->turn * UNIT / tenant->weight;
}

static int64_t tag_of(const struct nvc_handover_tenant *tenant)
{
    return tenant->account + turn_of(tenant);
}

static int64_t limit_of(const struct nvc_handover_device *device, const struct nvc_handover_tenant *tenant)
{
    return device->account + device->debt * UNIT / tenant->weight;
}

static void charge(const struct nvc_handover_device *device, struct nvc_handover_tenant *tenant,
                   int64_t held)
{
    int64_t account = tenant->account + divided(held * UNIT, tenant->weight);
    int64_t limit = limit_of(device, tenant);
    tenant->held += held;
    tenant->account = account > limit ? most(limit, tenant->account) : account;
}

/* What ran on after the turn before this one is the tenant's, and not that of who had the device from then on. */
static void pay_tail(const struct nvc_handover_device *device, struct nvc_handover_tenant *tenant,
                     int64_t tail)
{
    tail = least(tail, device->began - tenant->left);
    if (tail <= 0)
        return;
    charge(device, tenant, tail);
    int64_t until = tenant->follower_ended ? least(tenant->follower_ended, device->began) : device->began;
    charge(device, &device->tenants[tenant->follower],
           -least(tail, most(until - tenant->follower_began, 0)));
}

/* nvc.daemon.schedule.order.Order says why. */
static int32_t choose(const struct nvc_handover_device *device, int64_t *account)
{
    struct nvc_handover_tenant *tenants = device->tenants;
    int32_t first = 0, chosen = -1;
    for (int32_t i = 1; i < device->count; i++)
        if (tag_of(&tenants[i]) < tag_of(&tenants[first]))
            first = i;
    *account = most(device->account, tenants[first].account);
    for (int32_t i = 0; i < device->count; i++)
        if (tenants[i].account + divided(turn_of(&tenants[i]), 4) <= tag_of(&tenants[first]) &&
            (chosen < 0 || tenants[i].served < tenants[chosen].served))
            chosen = i;
    return chosen;
}

static void begin(struct nvc_handover_device *device, int32_t chosen, int64_t now)
{
    struct nvc_handover_tenant *tenant = &device->tenants[chosen];
    device->holder = chosen;
    device->round += 1;
    device->round += device->round == 0;
    device->began = now;
    device->length = tenant->length;
    device->deadline = now + tenant->length + device->grace;
    tenant->grants++;
    tenant->waited += tenant->since ? now - tenant->since : 0;
    tenant->since = 0;
}

bool nvc_handover_pass_on(struct nvc_handover_device *device, bool runs, int64_t tail, int64_t now)
{
    int32_t place = device->holder;
    struct nvc_handover_tenant *tenant = &device->tenants[place], before = *tenant, followed;
    int64_t passed = most(now - device->charged_until, 0), account;
    int32_t follower = tenant->left ? tenant->follower : place;
    if (passed > LATE_MAX_S * NS_PER_S || follower < 0 || follower >= device->count)
        return false;
    followed = device->tenants[follower];
    charge(device, tenant, passed);
    if (tenant->left)
        pay_tail(device, tenant, tail);
    tenant->served = tenant->since = now;
    tenant->turn = now - device->began;
    int32_t chosen = choose(device, &account);
    if (device->tenants[chosen].fd < 0) {
        device->tenants[follower] = followed;
        *tenant = before;
        return false;
    }
    device->account = account;
    int64_t ahead = least(device->tenants[chosen].account - account, turn_of(&device->tenants[chosen]));
    device->tenants[chosen].account -= ahead > 0 ? ahead / FORGIVEN : 0;
    device->charged_until = most(device->charged_until, now);
    if (!device->first_over)
        device->first_over = now;
    if (device->leader >= 0)
        device->tenants[device->leader].follower_ended = now;
    begin(device, chosen, now);
    device->leader = runs ? place : -1;
    tenant->left = runs ? now : 0;
    tenant->follower = runs ? chosen : -1;
    tenant->follower_began = runs ? now : 0;
    tenant->follower_ended = 0;
    return true;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

static void grant(struct nvc_handover *handover, const struct nvc_handover_device *device)
{
    int fd = device->tenants[device->holder].fd;
    struct nvcd_message message = {.kind = NVCD_GRANT,
                                   .round = device->round,
                                   .a = (uint64_t)device->length,
                                   .b = (uint64_t)(device->began - handover->ahead)};
    memcpy(message.uuid, device->uuid, sizeof(message.uuid));
    if (send(fd, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(message)) {
        handover->failed = fd;
        handover->failure = errno;
    }
}

static bool is_ordinary(const struct nvc_handover_device *device, const struct nvcd_message *message)
{
    return message->kind == NVCD_RELEASE && !message->reserved && message->round == device->round &&
           !(message->b & NVCD_ENOUGH) && message->b / NVCD_TAIL <= TAIL_MAX &&
           memcmp(message->uuid, device->uuid, sizeof(message->uuid)) == 0;
}

/* Whether the next message is of that size, and brings no descriptors: who takes those closes them, which may take long. */
static bool peek(int fd, struct nvcd_message *message)
{
    struct iovec place = {.iov_base = message, .iov_len = sizeof(*message)};
    struct msghdr header = {.msg_iov = &place, .msg_iovlen = 1};
    ssize_t size = recvmsg(fd, &header, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
    return size == sizeof(*message) && !(header.msg_flags & MSG_CTRUNC);
}

/* Nothing is taken from the connection before it is known to be ordinary: Python reads all else itself. */
static bool hear(struct nvc_handover *handover, struct nvc_handover_device *device)
{
    struct nvc_handover_tenant *tenant = &device->tenants[device->holder];
    struct nvcd_message message;
    if (!peek(tenant->fd, &message) || !is_ordinary(device, &message))
        return false;
    int64_t tail = (int64_t)(message.b / NVCD_TAIL);
    if (!nvc_handover_pass_on(device, message.b & NVCD_RUNS, tail, now_ns()))
        return false;
    grant(handover, device);
    handover->messages++;
    tenant->tokens--;
    recv(tenant->fd, &message, sizeof(message), MSG_DONTWAIT);
    return true;
}

static bool take(struct nvc_handover *handover, int fd)
{
    for (int32_t i = 0; i < handover->count; i++) {
        struct nvc_handover_device *device = &handover->devices[i];
        const struct nvc_handover_tenant *tenant = &device->tenants[device->holder];
        if (tenant->fd == fd)
            return tenant->tokens && hear(handover, device);
    }
    return false;
}

static int64_t due_of(const struct nvc_handover *handover, int64_t until)
{
    for (int32_t i = 0; i < handover->count; i++)
        until = least(until, handover->devices[i].deadline);
    return until;
}

static int milliseconds_until(int64_t due, int64_t now)
{
    int64_t left = due > now ? (due - now + NS_PER_MS - 1) / NS_PER_MS : 0;
    return (int)least(left, INT_MAX);
}

int nvc_handover_serve(struct nvc_handover *handover, int64_t until)
{
    struct epoll_event events[NVC_HANDOVER_READY];
    int64_t now = now_ns(), due = due_of(handover, until);
    handover->failed = -1;
    handover->ready_count = 0;
    handover->messages = 0;
    do {
        int timeout = milliseconds_until(due, now);
        int found = epoll_wait(handover->epoll, events, NVC_HANDOVER_READY, timeout);
        if (found < 0)
            return errno == EINTR ? 0 : -errno; /* a signal's handler is Python's */
        for (int i = 0; i < found && handover->failed < 0; i++)
            if (!take(handover, events[i].data.fd))
                handover->ready[handover->ready_count++] = events[i].data.fd;
        now = now_ns();
        due = due_of(handover, until);
    } while (!handover->ready_count && handover->failed < 0 && now < due);
    return 0;
}
