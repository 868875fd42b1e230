#ifndef NVC_TURNS_H
#define NVC_TURNS_H
#include <stdint.h>

#define NVC_TURNS_MAX 32

/* One turn on a device; times in nanoseconds of CLOCK_MONOTONIC. */
struct nvc_turn {
    int32_t fd; /* the connection of who has it */
    uint32_t round;
    uint64_t length;
    uint64_t foreseen; /* from its beginning until it is given back */
    uint64_t rest;     /* from the end of the turn before it to its beginning */
    uint64_t began;
    uint64_t ended; /* 0: it has not */
};

/* The turns that are to follow each other on one device. The first of them has begun. */
struct nvc_turns {
    uint8_t uuid[16];
    uint64_t patience; /* after the end of a turn, until whoever has not given it back is late */
    uint64_t slack;    /* by so much, in all, turns may last longer or shorter than foreseen */
    uint64_t drift;    /* by so much they have */
    uint32_t count;
    uint32_t place; /* of the one that runs, or has ended while the next one waits for its time */
    int32_t error;  /* an errno: of telling whoever has that one */
};

#define NVC_TURNS_TIME 0  /* `until` has come, or somebody is late */
#define NVC_TURNS_EVENT 1 /* something that is not foreseen: its descriptor still says so */
#define NVC_TURNS_END 2   /* the last turn of a device has begun, or its holder cannot be told */

/* Lets turns follow each other as they were laid down: when a holder gives its turn back and wants another one
 * (native/vgpu/protocol.h), the next one is told that its turn begins. Everything else is left to the caller: one of
 * the values above is returned, or -errno. `turns` has NVC_TURNS_MAX for each of the `count` devices. */
int nvc_turns_pass(int epoll, struct nvc_turns *devices, struct nvc_turn *turns, uint32_t count,
                   uint64_t until);

#endif
