/* Memory without addresses: what cuMemCreate makes. */
#pragma once

#include "memory.h"

/* A piece of memory. It lies in the space of its device, or, where it may be shared, in a file of its own. */
struct vmm {
    struct device *device; /* NULL: host memory */
    CUmemAllocationProp properties;
    uint64_t size;
    uint64_t address; /* in the space; 0: `fd` */
    int fd;
    uint64_t export_id;
    uint32_t handles, mappings;
};

/* Behind the contents of a file that was exported: what an importer has to know. */
struct vmm_trailer {
    uint64_t magic, size, export_id;
    char uuid[64];
};

/* The memory that a handle means, or NULL. */
struct vmm *vmm_of(CUmemGenericAllocationHandle handle);
void vmm_free_if_unused(struct vmm *vmm);
