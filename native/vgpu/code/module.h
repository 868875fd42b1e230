/* Loading of modules, and of libraries, which are modules in each context that uses them. */
#pragma once

#include "charge/charge.h"
#include "image.h"

/* What a call of the driver takes of a device, where nothing else tells: by the memory that is free before and after. */
uint64_t measured_now(int position); /* on the current context's device */

/* Bytes that were taken since, beyond what the books have come to show; what others took meanwhile is among them.
 * UINT64_MAX: nobody knows. */
uint64_t measured_since(int position, uint64_t before);

struct loading {
    struct target to;
    struct image image;
    uint64_t before; /* measured, unless the image is exact */
    uint64_t bytes;  /* of the module itself */
    uint64_t first;  /* of the process's first */
    bool known;
};

/* Functions whose memory is there: where the handle of one would be, which is the last that had its place. */
_Atomic uintptr_t *kernel_place(CUfunction function);

/* Handles of functions may mean others from now on. */
void kernels_forget(void);

/* What an image takes in a context. */
struct image module_data(const void *image);

/* What is charged for so many bytes. */
uint64_t module_bytes(uint64_t bytes);

/* Before and after the driver loads one, in the current context; false: it does not fit, and is to be unloaded. */
bool module_begin(struct image image, struct loading *loading);
bool module_end(struct loading *loading, uint64_t key, bool loaded, bool library);

/* A kernel is to run in a context; false: its library does not fit there. `lasting`: it never needs to be asked again
 * while there is no other context. */
bool library_allows_kernel(CUfunction kernel, const struct target *to, bool *lasting);
