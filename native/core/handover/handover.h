#ifndef NVC_HANDOVER_H
#define NVC_HANDOVER_H
#include <stdbool.h>
#include <stdint.h>

/* The ordinary end of a turn and the beginning of the next one, without Python. nvc/daemon/schedule/handover.py fills these
 * records before each wait, and reads them afterwards; the rules are those of the arbiter there, for a device that
 * nobody is late on. Times are nanoseconds of CLOCK_MONOTONIC. */

#define NVC_HANDOVER_READY 64

/* A slice that wants a device. `follower` to `follower_ended` are of the lease that began when the slice last gave one back
 * before its work had ended, which was at `left`; 0: its work had ended. */
struct nvc_handover_tenant {
    int64_t account; /* less a base that all of the device have in common */
    int64_t weight;
    int64_t length; /* of its next lease */
    int64_t turn;   /* how long it had its last one */
    int64_t served; /* when that ended */
    int64_t since;  /* waiting; 0: it is not */
    int64_t left;
    int64_t follower_began;
    int64_t follower_ended; /* 0: it goes on */
    int32_t follower;       /* a place among the tenants; -1: another one's */
    int32_t fd;      /* the connection of its only process that wants the device; -1: there are several */
    uint32_t tokens; /* messages that it may send */
    uint32_t grants; /* leases since the records were filled, */
    int64_t held;    /* and the time for which it is charged since */
    int64_t waited;
};

/* A device with a lease that ends. */
struct nvc_handover_device {
    struct nvc_handover_tenant *tenants;
    int32_t count;
    int32_t holder; /* the place of who has the lease */
    int32_t leader; /* of whose `follower` is that lease; -1: nobody's */
    uint32_t round; /* of the lease */
    int64_t began;
    int64_t length;
    int64_t charged_until;
    int64_t account;    /* where somebody stands who comes new, less the base */
    int64_t debt;       /* how much more a tenant of weight 1 may have on its account */
    int64_t grace;      /* from the end of a lease until Python looks who is late */
    int64_t deadline;   /* when that is */
    int64_t first_over; /* when the lease ended that there was at first; 0: it has not */
    uint8_t uuid[16];
};

struct nvc_handover {
    struct nvc_handover_device *devices;
    int32_t count;
    int32_t epoll;
    int64_t ahead;     /* of the host's clock, is this process's */
    uint32_t messages; /* that were taken */
    int32_t failed;    /* the connection that did not take a message, or -1, */
    int32_t failure;   /* and the errno */
    int32_t ready_count;
    int32_t ready[NVC_HANDOVER_READY]; /* descriptors that Python is to look at */
};

/* Gives the lease of the holder, which wants another one, to who is next. What the holder launched `runs` on for a moment; what
 * it had launched under the lease before did so for `tail`. False: this is not the ordinary case, and nothing was done. */
bool nvc_handover_pass_on(struct nvc_handover_device *device, bool runs, int64_t tail, int64_t now);

/* Waits, and hands leases on, until there is something for Python: a descriptor that is ready, a connection that failed, a
 * device's deadline, or the time `until`. Returns 0, or -errno. */
int nvc_handover_serve(struct nvc_handover *handover, int64_t until);

#endif
