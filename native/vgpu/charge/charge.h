/* Between a wrapper and the accounts: which device is charged, how much, and what is freed up before it is refused. */
#pragma once

#include "refund.h"
#include "process/real.h"

/* UINT64_MAX: it does not fit. */
static inline uint64_t multiply_capped(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Whose memory a call takes. */
struct target {
    int position; /* NO_POSITION: a device that the quota does not list, and so may not be used */
    CUdevice ordinal;
    uint64_t context;
};

/* False: the driver does not know either, and the call is for it to refuse. */
bool target_current(struct target *out);
bool target_device(CUdevice ordinal, struct target *out);
bool target_stream(CUstream stream, struct target *out);

/* An event of a context, which need not be the current one, or is that: 0. NULL: there is none to be had. */
CUevent event_make(uint64_t context, unsigned int flags);

/* Reserves, after giving back what can be; false: the driver's own CUDA_ERROR_OUT_OF_MEMORY is due. */
bool charge(int position, uint64_t bytes);

/* The same for who tries again before a program is told; then the refusal is noted for those who look at the slice. */
bool charge_quietly(int position, uint64_t bytes);
void charge_refused(int position);

/* Refunds what the driver has freed on its own. True: there was something. */
bool reclaim(int position);

/* The driver will free something at one of the next synchronisations. */
void reclaim_soon(void);

/* After a synchronisation: reclaims on all devices if reclaim_soon() was called. */
void reclaim_after_wait(void);

/* Refunds what was exported and whose descriptor is closed by now; true: there was some. */
bool exports_read(int position);

/* Linear memory that a stream is to free counts until it has: `item` is that of the memory. */
void later_free(const struct item *item, CUstream stream, bool per_thread);
bool later_read(int position); /* true: some was freed */

/* Charges memory that another container's process exported and this one maps, since it stays when the exporter ends. The
 * driver's figure counts, but no less than the largest memory that this container has exported, because a program can
 * forge a handle. False: it does not fit. */
bool charge_foreign(CUdeviceptr address, struct item *item);

/* Memory of a pool was freed, which may have been exported. */
void pool_freed(CUdeviceptr address);
