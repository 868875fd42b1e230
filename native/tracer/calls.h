/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * The driver's calls and their structures, as far as tracer.bpf.c reads them. */
#pragma once

#include "helpers.h"

enum { ESC_FREE = 0x29, ESC_CONTROL = 0x2A, ESC_ALLOC = 0x2B, ESC_XFER = 211 };
enum {
    NVOS00_SIZE = 16,
    NVOS21_SIZE = 32,
    NVOS54_SIZE = 32,
    NVOS64_SIZE = 48,
    XFER_SIZE = 16,
    FINN_SERIALIZED = 1
};
enum { DISABLE_CHANNELS = 0x2080110b, SET_TIMESLICE = (int)0xa06c0103 };
/* ctrl2080fifo.h: NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
struct disable {
    u32 disable, count, flags[2];
    u64 event;
    u32 clients[64], channels[64];
};
enum {
    MOST_NAMED = 16,
    NAMED_CLIENTS = __builtin_offsetof(struct disable, clients),
    NAMED_CHANNELS = __builtin_offsetof(struct disable, channels)
};
_Static_assert(sizeof(struct disable) == 536 && NAMED_CHANNELS == 280, "which channels are named");
enum { CLASS_CLIENT = 0x41, CLASS_DEVICE = 0x80, CLASS_SUBDEVICE = 0x2080, CLASS_GROUP = 0xa06c };
/* nvos.h: NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS */
struct group_parameters {
    u32 error, ecc_error, space, engine;
};

/* alloc_channel.h: NV_CHANNEL_ALLOC_PARAMS, as far as the engine */
struct channel_parameters {
    u32 error, buffer;
    u64 gp_fifo;
    u32 entries, flags, share, space, user_memory[8];
    u64 user_offset[8];
    u32 engine;
};

enum {
    GROUP_ENGINE = __builtin_offsetof(struct group_parameters, engine),
    CHANNEL_ENGINE = __builtin_offsetof(struct channel_parameters, engine)
};
_Static_assert(GROUP_ENGINE == 12 && CHANNEL_ENGINE == 128, "where engines are named");
