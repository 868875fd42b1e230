#pragma once

/* A mount namespace for this process alone: the host's later mounts arrive, its own stay its own. 0 or -errno. */
int nvc_private_mounts(void);

/* Lays an empty, writable directory of this mount namespace over `directory`: what is in it stays visible, what is made
 * in it is made in memory. 0 or -errno. */
int nvc_writable_over(const char *directory);

/* prctl(2) with one argument. 0 or -errno. */
int nvc_prctl(int option, unsigned long value);

/* Mounts a file system bpf of its own, by which programs and maps outlive their descriptors, and whether a directory is on
 * one: 1 or 0. Or -errno. */
int nvc_bpf_mount(const char *directory);
int nvc_bpf_is_mounted(const char *directory);
