/* What a process of a container and nvcd tell each other about the time of a device. One record of a SOCK_SEQPACKET
 * socket is one message; little-endian, fixed width. Who the process is nvcd knows from the socket's credentials and
 * from /proc, never from a message.
 *
 * With two or more tenants that want the same device, one at a time has a lease on it. The process says WANT when it has
 * work for the device, or is about to have; it launches nothing before FREE or GRANT. At the end of a lease's length, or
 * after DROP, it launches nothing more, and says RELEASE when what runs has ended, or surely will have before the next
 * one can have begun; earlier when it has been idle. Where what runs does not end since it waits for what is yet to be launched, the process says WANT with the
 * lease's round instead: nvcd hands the turn on, and takes that work for unfinished until the next one. Where it waits for the
 * host, or for another process, the process says STALL, and again when that changes: nvcd hands the turn on, and charges only
 * for the time in which the work runs. A process whose connection is lost goes on as if there were no nvcd,
 * and may connect again. */
#ifndef NVC_VGPU_PROTOCOL_H
#define NVC_VGPU_PROTOCOL_H

#include <stdint.h>

#define NVCD_VERSION 1

enum {
    /* from the process */
    NVCD_HELLO = 1,   /* first of all; `a`: NVCD_VERSION */
    NVCD_WANT = 2,    /* `uuid`; `round`: of a lease that is over, whose work waits for more; else 0 */
    NVCD_RELEASE = 3, /* `uuid`, `round`; `a`: GPU time used under it; `b`: see below */
    NVCD_STALL =
        4, /* `uuid`, `round`; `a`: likewise, `b`: 1 if none of what it launched runs, 0 if it runs again */
    NVCD_MAKING =
        5, /* `uuid`; `a`: 1, it begins to make a context, by which others lose time; 0: it has it */

    /* from nvcd */
    NVCD_WELCOME = 16, /* `a`: NVCD_VERSION */
    NVCD_FREE = 17,    /* `uuid`, `round`: a lease without an end until DROP, kept when idle */
    NVCD_GRANT = 18, /* `uuid`, `round`: a lease; `a`: its length; `b`: when nvcd heard that the turn before
                        * is over, on the host's CLOCK_MONOTONIC; 0: there was none */
    NVCD_DROP =
        19, /* `uuid`, `round`: the lease is over; `b`: what late ones had of it, once it is given back */
    NVCD_REFUSED = 20, /* `a`: an errno; nvcd closes the connection */
};

/* `b` of a release. What runs when it is sent goes on for as long as a hand-over takes. How long it did is in the next one:
 * `b` / NVCD_TAIL nanoseconds, but for what ran under the new lease. */
enum {
    NVCD_ENOUGH = 1, /* no more is wanted */
    NVCD_RUNS = 2,   /* what was launched has not ended */
    NVCD_TAIL = 4,
};

/* Times in nanoseconds. A `round` is a lease's number: an answer to an old one is ignored. */
struct nvcd_message {
    uint16_t kind;
    uint16_t reserved;
    uint32_t round;
    uint8_t uuid[16]; /* as in the quota; zero where the kind has none */
    uint64_t a, b;
};

_Static_assert(sizeof(struct nvcd_message) == 40, "layout");

#endif
