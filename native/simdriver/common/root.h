/* The driver root that a simulated library belongs to, and what of the description this process may see. */
#pragma once

#include "description.h"

#include <stdbool.h>

enum { SIM_MAX_PATH = 4096 };

struct sim_root {
    char path[SIM_MAX_PATH]; /* "" for /, else without a slash at the end */
    struct sim_description description;
};

/* Finds the root above the file that this code was loaded from: the nearest parent directory with
 * proc/driver/nvidia/sim/description. Reads the description. Returns 0, or -1 with one line in `message`. */
int sim_root_open(struct sim_root *root, char *message, size_t size);

/* The same for a root whose path is known. */
int sim_root_at(struct sim_root *root, const char *path, char *message, size_t size);

/* Joins `root` and an absolute path. Returns false where the result does not fit into SIM_MAX_PATH. */
bool sim_root_join(const struct sim_root *root, const char *path, char out[SIM_MAX_PATH]);

/* Whether `path` in the root is a character device with these numbers. Nodes are looked at, never opened: on a
 * machine with a real driver they would be real. */
bool sim_root_has_node(const struct sim_root *root, const char *path, uint32_t major, uint32_t minor);

/* Whether the nodes that a program needs for this GPU, or this MIG device, are in the root. */
bool sim_root_has_gpu(const struct sim_root *root, const struct sim_gpu *gpu);
bool sim_root_has_mig(const struct sim_root *root, const struct sim_gpu *gpu, const struct sim_mig *mig);

/* Whether the right to see every MIG device is there (capabilities/mig/config or monitor with its node). */
bool sim_root_has_mig_monitor(const struct sim_root *root);
