/* Where this shim lies, and what lies beside it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLACE_MAX = 4096 };

/* Joins the shim's own directory and `name`. */
bool place_join(const char *name, char out[PLACE_MAX]);

/* Opens what lies at the path, above the descriptors that programs count on being low, where the limit lets us. */
int place_open(const char *name, int flags, char path[PLACE_MAX]);

/* Whether two addresses are in one library. */
bool place_is_same(uintptr_t one, uintptr_t other);

/* Sets out[i] to the address of names[i] in the private library `file` (such as `nvc/real-libcuda.so.1`), or to `missing`
 * where it has no such symbol. Any number of threads may do so at once: the answers are the same. */
void place_resolve(const char *file, const char *const *names, void *_Atomic *out, size_t count,
                   void *missing);
