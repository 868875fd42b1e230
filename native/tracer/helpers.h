/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
 *
 * What tracer.bpf.c has in place of the kernel's and libbpf's headers. */
#pragma once

typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline)) inline

/* Helpers by number: linux/bpf.h. */
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static u64 (*const current_task)(void) = (void *)35;
static long (*const send_signal)(u32 signal) = (void *)109;
static long (*const read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*const read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const pid_in)(u64 device, u64 inode, void *pids, u32 size) = (void *)120;
static u64 (*const boot_ns)(void) = (void *)125;
static long (*const ring_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;

/* What build.py reads of each map. */
struct map {
    u32 type, key_size, value_size, entries, flags;
};
