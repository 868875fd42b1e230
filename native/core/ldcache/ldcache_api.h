#pragma once
#include <stddef.h>
#include <stdint.h>

#define NVC_LDCACHE_MAX 33554432
#define NVC_LDCACHE_ENTRIES_MAX 1000000

/* A library to be found under its SONAME. `arch_flags` as cache entries hold them: 0x0303 x86_64, 0x0003 i386,
 * 0x0a03 aarch64, 0x0903 arm hard-float. */
struct nvc_ldcache_entry {
    const char *soname;
    const char *path;
    uint32_t arch_flags;
};

/* Merges `add` into the ld.so.cache of `old_size` bytes at `old` (size 0: none, a new one is made). Pure: makes no
 * system call but for memory, keeps no state.
 *
 * Every entry of `add` is what a dlopen of its SONAME finds: it stands before all entries of that name whose flags are
 * its own or lower, those of glibc-hwcaps directories included, and every loader since glibc 2.2 ends its search at the
 * first entry with its own flags and no hwcaps. Of two additions with one name and flags the first wins. The image's
 * entries of that name stay behind ours; only one with the same name, flags and path is replaced. All other entries keep their meaning and order. Merging again gives the same bytes.
 *
 * Returns 0 and a cache from malloc in *merged and *merged_size; -ENOMEM; -EINVAL for an entry of `add` that cannot be
 * one; -EBADMSG when `old` is not a cache that this machine's loader would read, or one in which ours could not be found:
 * ask again with size 0. */
int nvc_ldcache_merge(const uint8_t *old, size_t old_size, const struct nvc_ldcache_entry *add, size_t count,
                      uint8_t **merged, size_t *merged_size);

void free(void *memory); /* stdlib.h */

/* The entries of a cache in the order in which the loader reads them: of each the flags in hexadecimal digits, the name and
 * the path, each with a NUL behind it. Returns 0, or -EBADMSG where it is no cache that this machine's loader would read,
 * or has an entry that the loader could not use; -ENOMEM. The list is from malloc, too. */
int nvc_ldcache_list(const uint8_t *bytes, size_t size, uint8_t **list, size_t *list_size);
