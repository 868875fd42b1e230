#pragma once
#include <stdint.h>

/* Each but the last returns a descriptor (close-on-exec) or 0, or -errno. */
/* What is at a path in a root, which no link leaves. `more` are bits of openat2(2)'s `resolve`. */
int nvc_open_below(int root, const char *path, uint64_t flags, uint64_t more);
int nvc_pidfd_open(int pid);
int nvc_pidfd_send_signal(int pidfd, int sig);

/* The root of this process's cgroup namespace: of the v1 devices hierarchy, or of version 2. */
int nvc_cgroup_root(int version);

/* 1 or 0, or -errno. */
int nvc_is_mount_root(int fd);
/* What a descriptor stands for, without asking the file system's server. Returns 0 or -errno. */
struct nvc_identity {
    uint64_t device;
    uint64_t inode;
    uint64_t mount; /* as in /proc/PID/mountinfo */
    uint32_t mode;
    uint64_t node; /* the number of the device that a device node stands for */
    int is_mount_root;
};
int nvc_identity(int fd, struct nvc_identity *out);

/* When the file was made, ns since 1970; 0 where the file system does not say. */
int64_t nvc_birth_time(int fd);
