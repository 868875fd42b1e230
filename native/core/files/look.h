#pragma once

#define NVC_LOOK_PATH 128

/* What is asked of one path, and the answer. */
struct nvc_look {
    char path[NVC_LOOK_PATH];
    int flags;  /* of open(2); close-on-exec is always set */
    int pid;    /* instead of a path, a descriptor of this process: that very one (pidfd_getfd(2)); else 0 */
    int number; /* that descriptor's */
    int size;   /* so many bytes are read at most; -1: a descriptor is wanted */
    char *data; /* has room for them */
    int result; /* the length of `data`, or the descriptor; or -errno */
};

/* Asks in order, for timeout_ms in all. Returns how many were answered, or -errno where it could not begin. Without an
 * answer to all of them there are no descriptors. */
int nvc_look(struct nvc_look *asks, int count, int timeout_ms);

/* Whether the process of a pidfd has no thread that runs: 1 or 0, or -errno. */
int nvc_pidfd_ended(int pidfd);
