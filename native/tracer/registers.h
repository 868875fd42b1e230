/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#pragma once

#include "helpers.h"

/* Registers of an ioctl. Only 32 bits of a system call's number and of an ioctl's command count for the kernel: a program
 * may leave anything in the others. A number names another call in a program of 32 bits, and by int 0x80. */
#if defined(NVC_X86_64)
enum { BX = 40, CX = 88, DX = 96, SI = 104, DI = 112, ORIG_AX = 120 }; /* struct pt_regs */
enum { X32 = 0x40000000, IOCTL = 16, IOCTL_X32 = 514, IOCTL_I386 = 54 };
enum { TS_COMPAT = 2 };

/* Whether the call has numbers and registers of i386: thread_info of the task, at its beginning, says so. */
INLINE int is_i386(void)
{
    u32 status = 0, index = STATUS_AT;
    u64 *at = map_lookup(&settings, &index);

    if (at)
        read_kernel(&status, sizeof(status), (const char *)current_task() + *at);
    return status & TS_COMPAT;
}

INLINE int read_ioctl(const char *registers, u32 *fd, u32 *command, u64 *at)
{
    u32 nr = 0, wide;

    read_kernel(&nr, sizeof(nr), registers + ORIG_AX);
    nr &= ~(u32)X32;
    if (nr != IOCTL && nr != IOCTL_X32 && nr != IOCTL_I386)
        return 0;
    if (!is_i386()) {
        if (nr == IOCTL_I386)
            return 0;
        read_kernel(fd, sizeof(*fd), registers + DI);
        read_kernel(command, sizeof(*command), registers + SI);
        read_kernel(at, sizeof(*at), registers + DX);
        return 1;
    }
    if (nr != IOCTL_I386)
        return 0;
    read_kernel(fd, sizeof(*fd), registers + BX);
    read_kernel(command, sizeof(*command), registers + CX);
    read_kernel(&wide, sizeof(wide), registers + DX);
    *at = wide;
    return 1;
}
#elif defined(NVC_AARCH64)
/* struct pt_regs: user_pt_regs with regs[31], sp, pc, pstate; then orig_x0, syscallno. regs[0] is the result by then. */
enum { REGS = 0, PSTATE = 264, ORIG_X0 = 272, SYSCALLNO = 280, IOCTL = 29, IOCTL_ARM = 54, MODE_32 = 0x10 };

INLINE int read_ioctl(const char *registers, u32 *fd, u32 *command, u64 *at)
{
    u32 nr = 0;
    u64 state = 0;

    read_kernel(&nr, sizeof(nr), registers + SYSCALLNO);
    if (nr != IOCTL && nr != IOCTL_ARM)
        return 0;
    read_kernel(&state, sizeof(state), registers + PSTATE);
    if (nr != (state & MODE_32 ? IOCTL_ARM : IOCTL))
        return 0;
    read_kernel(fd, sizeof(*fd), registers + ORIG_X0);
    read_kernel(command, sizeof(*command), registers + REGS + 8);
    read_kernel(at, sizeof(*at), registers + REGS + 16);
    return 1;
}
#else
#error "no registers for this machine"
#endif
