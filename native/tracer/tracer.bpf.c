/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * Sees which objects of the NVIDIA driver's resource manager each process makes, and kills a guarded process that starts
 * or stops channels. It runs after every system call of the host, so that what is not an ioctl ends after one read.
 *
 * No header of a machine is included: the program needs a dozen definitions. The helpers that read
 * memory are for programs under the GPL only (kernel/trace/bpf_trace.c), hence the second licence of this file.
 *
 * Numbers and layouts: nvos.h, nv_escape.h, nv-ioctl.h, cl0080.h, alloc_channel.h of open-gpu-kernel-modules 595.45.04.
 * The driver looks at the number and the size of an ioctl and not at its type (nvidia_ioctl in nv.c): so does this.
 */
#include "calls.h"
#include "helpers.h"
#include "news.h"

enum { HASH = 1, ARRAY = 2, RING = 27 };
/* Of nvc/kernel/tracer.py: where thread_info has `status`; when the programs began to see calls, CLOCK_BOOTTIME, ns. */
enum { STATUS_AT, SINCE, SETTINGS };
struct map settings SEC("maps") = {ARRAY, sizeof(u32), sizeof(u64), SETTINGS, 0};

#include "registers.h"

/* Flags of a process; above them, the number of the slice that it is guarded for. What it makes has the same. */
enum { GUARDED = 1, EXEMPT = 2, SLICE = 2 };
enum { LOST_NEWS, LOST_OBJECTS, LOST_GUARDS, COUNTS };

enum { SPACES = 256 };

struct space {
    u64 device, inode;
    u32 flags, unused;
};

struct map objects SEC("maps") = {HASH, sizeof(struct key), sizeof(struct object), 65536, 0};
/* How many objects each process has. One that has as many as 16 are to have room for is told of: the rest is not seen. */
struct map owners SEC("maps") = {HASH, sizeof(u32), sizeof(u32), 32768, 0};
struct map guards SEC("maps") = {HASH, sizeof(u32), sizeof(u32), 32768, 0};
/* Tasks that a guarded process made and that have not yet been seen: their process id cannot be read portably here, but
 * the address of their task can be looked up once they run. */
struct map births SEC("maps") = {HASH, sizeof(u64), sizeof(u32), 65536, 0};
/* Pid namespaces in which slices have processes: nsfs's device and inode, and what guards those in it; up to the first
 * without an inode. */
struct map spaces SEC("maps") = {ARRAY, sizeof(u32), sizeof(struct space), SPACES, 0};
struct map counts SEC("maps") = {ARRAY, sizeof(u32), sizeof(u64), COUNTS, 0};
struct map ring SEC("maps") = {RING, 0, 0, 1 << 19, 0};

char terms[] SEC("license") = "GPL";

INLINE void count(u32 which)
{
    u64 *value = map_lookup(&counts, &which);

    if (value)
        __sync_fetch_and_add(value, 1);
}

INLINE void tell(u32 kind, u32 pid, u32 client, u32 handle, const struct object *object)
{
    struct news news = {kind, pid, client, handle, {0}};

    if (object)
        news.object = *object;
    if (ring_output(&ring, &news, sizeof(news), 0))
        count(LOST_NEWS);
}

/* Flags of the current process. Who was made by a guarded process is guarded from its first call on. */
INLINE u32 flags_of(u32 pid)
{
    u32 *known = map_lookup(&guards, &pid), flags;
    u64 task;

    if (known)
        return *known;
    task = current_task();
    known = map_lookup(&births, &task);
    if (!known)
        return 0;
    flags = *known;
    if (map_update(&guards, &pid, &flags, 0))
        count(LOST_GUARDS);
    else
        map_delete(&births, &task);
    return flags;
}

/* What guards the processes of the namespace in which the current one is; it may have entered a container a moment ago. */
INLINE u32 flags_of_space(void)
{
    struct space *space;
    u32 place, key, pids[2];

    for (place = 0; place < SPACES; place++) {
        key = place;
        space = map_lookup(&spaces, &key);
        if (!space || !space->inode)
            return 0;
        if (!pid_in(space->device, space->inode, pids, sizeof(pids)))
            return space->flags;
    }
    return 0;
}

enum { MOST_OBJECTS = 4096 };
/* One ioctl: `size` and `at` are of its structure in the process's memory. */
struct call {
    u32 nr, size, pid;
    s32 fd;
    s64 result;
    u64 at;
};

INLINE int is_channel(u32 class)
{
    return (class & 0xff) == 0x6f && class >= 0x906f && class <= 0xffff;
}

/* Whether there is room for an object of the process. What it has already is replaced: its handle was used anew. What
 * another one has is not, while that lives: a process may change what its own call says, after the driver answered. */
INLINE int may_add(const struct key *key, u32 pid)
{
    u32 *had = map_lookup(&owners, &pid), one = 1, other;
    struct object *known = map_lookup(&objects, key);

    if (known) {
        other = known->pid;
        if (other == pid || !map_lookup(&owners, &other))
            return 1;
        tell(CONTESTED, pid, key->client, key->handle, 0);
        return 0;
    }
    if (!had) {
        map_update(&owners, &pid, &one, 0);
        return 1;
    }
    if (*had >= MOST_OBJECTS) {
        tell(CROWDED, pid, 0, 0, 0);
        return 0;
    }
    __sync_fetch_and_add(had, 1);
    return 1;
}

/* A process has one object less. */
INLINE void release(u32 pid)
{
    u32 *had = map_lookup(&owners, &pid);

    if (had)
        __sync_fetch_and_add(had, -1);
}

INLINE void on_alloc(const struct call *call)
{
    struct object object = {0}, client = {0};
    u32 words[NVOS64_SIZE / 4] = {0}, status, known;
    struct key key, root;
    u64 parameters;

    /* The device opens files too; only what the driver says it made counts. */
    if (call->result != 0)
        return;
    if (call->size == NVOS64_SIZE) {
        if (read_user(words, NVOS64_SIZE, (void *)call->at))
            return;
        status = words[10];
    } else if (call->size == NVOS21_SIZE) {
        if (read_user(words, NVOS21_SIZE, (void *)call->at))
            return;
        status = words[7];
    } else {
        return;
    }
    if (status)
        return;
    object.class = words[3];
    known = object.class == CLASS_CLIENT || object.class == CLASS_DEVICE ||
            object.class == CLASS_SUBDEVICE || object.class == CLASS_GROUP || is_channel(object.class);
    if (!known)
        return;
    key.client = object.class == CLASS_CLIENT ? words[2] : words[0];
    key.handle = words[2];
    object.serial = boot_ns();
    object.pid = call->pid;
    object.parent = words[1];
    object.fd = call->fd;
    object.device = -1;
    parameters = (u64)words[5] << 32 | words[4];
    if (call->size == NVOS64_SIZE && words[9] & FINN_SERIALIZED)
        parameters = 0;
    if (object.class == CLASS_DEVICE) {
        if (!parameters || read_user(&object.device, sizeof(object.device), (void *)parameters))
            object.device = -1;
    } else if (object.class == CLASS_GROUP && parameters) {
        read_user(&object.engine, sizeof(object.engine), (void *)(parameters + GROUP_ENGINE));
    } else if (is_channel(object.class) && parameters) {
        read_user(&object.engine, sizeof(object.engine), (void *)(parameters + CHANNEL_ENGINE));
    }
    if (!may_add(&key, call->pid))
        return;
    if (map_update(&objects, &key, &object, 0)) {
        count(LOST_OBJECTS);
        tell(FULL, call->pid, 0, 0, 0);
        release(call->pid);
        return;
    }
    if (object.class != CLASS_CLIENT) {
        /* A client that was made before this program was loaded, or by one of its older classes. */
        root.client = root.handle = key.client;
        if (!map_lookup(&objects, &root)) {
            client = object;
            client.class = CLASS_CLIENT;
            client.parent = 0;
            client.device = -1;
            client.engine = 0;
            map_update(&objects, &root, &client, 0);
        }
    }
    tell(NEW, call->pid, key.client, key.handle, &object);
}

INLINE void on_free(const struct call *call)
{
    u32 words[NVOS00_SIZE / 4] = {0};
    struct object *object;
    struct key key;

    if (call->result != 0 || call->size != NVOS00_SIZE || read_user(words, NVOS00_SIZE, (void *)call->at) ||
        words[3])
        return;
    key.client = words[0];
    key.handle = words[2];
    object = map_lookup(&objects, &key);
    if (!object || object->pid != call->pid)
        return; /* of a class that is of no interest; or it says that another one's is freed */
    map_delete(&objects, &key);
    release(call->pid);
    tell(key.client == key.handle ? CLIENT_FREED : FREED, call->pid, key.client, key.handle, 0);
}

/* Whose channels a call has started, once for each client in a row: they may run without having done it themselves. A
 * long call names everybody, as client 0: the kernel's verifier follows each turn of the loop. */
INLINE void tell_named(const struct call *call, u64 at, const struct object *by)
{
    struct object *object;
    u32 start[2] = {0}, last = 0, place;
    struct key key;

    if (read_user(start, sizeof(start), (void *)at) || start[0] & 0xff)
        return;
    if (start[1] > MOST_NAMED)
        tell(NAMED, call->pid, 0, 0, by);
    for (place = 0; place < MOST_NAMED; place++) {
        if (place >= start[1] ||
            read_user(&key.client, sizeof(u32), (void *)(at + NAMED_CLIENTS + place * sizeof(u32))) ||
            read_user(&key.handle, sizeof(u32), (void *)(at + NAMED_CHANNELS + place * sizeof(u32))))
            return;
        if (key.client == last)
            continue;
        object = map_lookup(&objects, &key);
        if (!object || !is_channel(object->class))
            continue;
        last = key.client;
        tell(NAMED, call->pid, key.client, key.handle, by);
    }
}

/* Whatever the call returned: its answer is copied last, and can fail after the driver has done it. */
INLINE void on_control(const struct call *call)
{
    u32 words[NVOS54_SIZE / 4] = {0}, flags;
    struct object by = {0};

    if (call->size != NVOS54_SIZE)
        return;
    if (read_user(words, NVOS54_SIZE, (void *)call->at)) {
        if (flags_of(call->pid) & GUARDED)
            tell(UNREADABLE, call->pid, 0, 0, 0);
        return;
    }
    if (words[2] != DISABLE_CHANNELS && words[2] != (u32)SET_TIMESLICE)
        return;
    flags = flags_of(call->pid);
    if (flags & EXEMPT)
        return;
    if (words[2] == (u32)SET_TIMESLICE) {
        if (call->result == 0 && words[7] == 0)
            tell(TIMESLICE, call->pid, words[0], words[1], 0);
        return;
    }
    if (!(flags & GUARDED) && (flags = flags_of_space()) && map_update(&guards, &call->pid, &flags, 0))
        count(LOST_GUARDS);
    by.parent = flags >> SLICE;
    /* It is done in part where the driver says that it failed. */
    if (words[6] == sizeof(struct disable) && (call->result == 0 || flags & GUARDED))
        tell_named(call, (u64)words[5] << 32 | words[4], &by);
    if (flags & GUARDED) {
        send_signal(9);
        tell(KILLED, call->pid, words[0], words[1], &by);
    } else if (call->result == 0 && words[7] == 0) {
        tell(MEDDLED, call->pid, words[0], words[1], 0);
    }
}

INLINE int on_call(struct call *call)
{
    struct {
        u32 nr, size;
        u64 at;
    } xfer = {0};

    /* The same call with number, size and address in memory. */
    if (call->nr == ESC_XFER) {
        if (call->size != XFER_SIZE || read_user(&xfer, sizeof(xfer), (void *)call->at))
            return 0;
        call->nr = xfer.nr;
        call->size = xfer.size;
        call->at = xfer.at;
    }
    if (call->nr == ESC_CONTROL)
        on_control(call);
    else if (call->nr == ESC_ALLOC)
        on_alloc(call);
    else if (call->nr == ESC_FREE)
        on_free(call);
    return 0;
}

SEC("raw_tp/sys_exit") int after_call(u64 *context)
{
    u32 fd = 0, command = 0;
    struct call call = {0};

    if (!read_ioctl((const char *)context[0], &fd, &command, &call.at))
        return 0;
    call.nr = command & 0xff;
    if (call.nr != ESC_CONTROL && call.nr != ESC_ALLOC && call.nr != ESC_FREE && call.nr != ESC_XFER)
        return 0;
    call.size = command >> 16 & 0x3fff;
    call.pid = current_pid_tgid() >> 32;
    call.fd = fd;
    call.result = context[1];
    return on_call(&call);
}

SEC("raw_tp/sched_process_fork") int on_fork(u64 *context)
{
    u32 flags = flags_of(current_pid_tgid() >> 32);
    u64 child = context[1];

    if (flags & GUARDED && map_update(&births, &child, &flags, 0))
        count(LOST_GUARDS);
    return 0;
}

/* Of each thread. That the process is over is for nvcd to find out: the others may go on without the first one. */
SEC("raw_tp/sched_process_exit") int on_exit(void)
{
    u64 id = current_pid_tgid(), task = current_task();
    u32 pid = id >> 32, *flags;

    map_delete(&births, &task);
    if (pid != (u32)id)
        return 0;
    flags = map_lookup(&guards, &pid);
    if (flags || map_lookup(&owners, &pid))
        tell(EXITED, pid, 0, 0, 0);
    /* Whoever has the number next is not. */
    if (flags && *flags & EXEMPT)
        map_delete(&guards, &pid);
    return 0;
}
