/* Memory that several processes of the container hold, which is charged once: to its exporter, and when that one lets
 * go of it first, to an importer. */
#pragma once

#include "process/process.h"

enum { SHARE_HANDLE = 64 };

/* The calling process exports `bytes`. Returns a number for the next ones; 0: it is not kept, for want of room. */
uint32_t share_export(const uint8_t handle[SHARE_HANDLE], int position, uint64_t bytes);

/* The exporter gives the memory up. True: an importer bears it now, and has it in its books already. */
bool share_give_up(uint32_t share);

/* The calling process imports. 0: not from this container's ledger. `foreign`: only one that it neither exports
 * nor imports already. */
uint32_t share_import(const uint8_t handle[SHARE_HANDLE], bool foreign);

/* Likewise of memory whose name is its own alone. `again`: the process has to do with it already. */
uint32_t share_join(const uint8_t handle[SHARE_HANDLE], bool *again);

/* Bytes of the largest one. */
uint64_t share_largest(void);

/* It has no more use of the import. */
void share_leave(uint32_t share);

/* Settles what the dead owner of a slot shared; its lock is held, and so is the account lock. False: not now. */
bool share_bury(struct process *in, uint32_t slot);
