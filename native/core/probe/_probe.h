#ifndef NVC_PROBE_INTERNAL_H
#define NVC_PROBE_INTERNAL_H
#include "probe.h"

#include <sys/types.h>

/* Notes a failed step in the frame. Returns -1. */
int nvc_probe_fail(struct nvc_probe_frame *frame, uint32_t status, int code, const char *step,
                   const char *text);

/* Takes every right from the calling process. Returns 0, or -1 with the frame filled. */
int nvc_probe_confine(const struct nvc_probe_options *options, pid_t parent, struct nvc_probe_frame *frame);

/* Forbids to make or touch other processes. Returns 0 or -errno. */
int nvc_probe_filter(void);

/* The first library of the names that loads; NULL with the frame filled. */
void *nvc_probe_load(const char *libraries, struct nvc_probe_frame *frame);

/* Sets options->limits through NVML; `before` gets those that they replace. */
void nvc_probe_set_limits(const struct nvc_probe_options *options, struct nvc_probe_frame *frame,
                          struct nvc_probe_limit *before);

/* Loads NVML and fills the frame and `gpus`, an array of NVC_PROBE_MAX_GPUS. */
void nvc_probe_query(const char *libraries, struct nvc_probe_frame *frame, struct nvc_probe_gpu *gpus);

#endif
