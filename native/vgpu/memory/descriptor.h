/* Which memory a descriptor stands for, and whether any copy of it is left.
 *
 * The driver exports memory as an open file of its control device: all exports are of one inode, so neither that nor a
 * number tells them apart. The shim locks a few bytes of what is exported, in the name of the open file: the kernel gives
 * the lock up with the last copy of the descriptor, whoever has it, and shows where it begins and how long it is. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Another open file of the same inode, to ask by; 0: none is to be had, and nothing will be known to have ended. */
struct probe {
    int fd; /* + 1 */
    uint64_t device, inode;
};

/* Marks a descriptor as one of a piece of memory; `*mark` is that memory's, or 0, and becomes a new one's. */
bool descriptor_mark(int fd, uint64_t *mark, uint64_t bytes);

/* The mark of a descriptor, and the bytes behind it; false: it has none. */
bool descriptor_read(int fd, uint64_t *mark, uint64_t *bytes);

bool descriptor_probe(int fd, struct probe *out);
void descriptor_unprobe(const struct probe *probe);

/* Whether a descriptor with the mark exists anywhere. */
bool descriptor_lives(const struct probe *probe, uint64_t mark);
