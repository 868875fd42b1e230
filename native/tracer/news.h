/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * What the tracer keeps of objects, and tells of them: as in nvc/kernel/objects.py. */
#pragma once

#include "helpers.h"

enum {
    NEW = 1,
    FREED,
    CLIENT_FREED,
    TIMESLICE,
    KILLED,
    EXITED,
    MEDDLED,
    UNREADABLE,
    CROWDED,
    CONTESTED,
    NAMED,
    FULL
};

struct key {
    u32 client, handle;
};

struct object {
    u64 serial; /* CLOCK_BOOTTIME, ns, when the call returned */
    u32 pid, parent, class;
    s32 fd;
    s32 device;
    u32 engine;
};

struct news {
    u32 kind, pid, client, handle;
    struct object object;
};

_Static_assert(sizeof(struct object) == 32 && sizeof(struct news) == 48,
               "nvc/kernel/objects.py unpacks these");
