/* cuCheckpoint*: what a process asks about another one, without cuInit.
 *
 * The state that both share has all of it. What a checkpointed process had on a device stays in its own memory, which is
 * the host's already; it is counted as `saved` and no longer as `bytes`. Each step can be done again by somebody else where
 * who did it was killed. */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DELAYS "/proc/driver/nvidia/sim/checkpoint"

enum { LOOK_NS = 200000, DELAYS_MOST = 4096, SINCE_MAJOR = 12, SINCE_MINOR = 8 };

/* Lines `STEP MILLISECONDS`: that step takes so long before it does anything, for who tests what happens meanwhile. */
int step_delay(const struct driver *in, const char *step)
{
    char path[SIM_MAX_PATH], text[DELAYS_MOST], name[32];
    unsigned int ms;
    int found = -1,
        fd = sim_root_join(&in->root, DELAYS, path) ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    for (char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (sscanf(line, "%31s %u", name, &ms) == 2 && strcmp(name, step) == 0)
            usleep((found = (int)ms) * 1000);
    return found;
}

static struct sim_slot *slot_at(const struct driver *in, int pid, uint32_t *number)
{
    uint32_t used = atomic_load(&in->state->slots_used);
    for (*number = 0; *number < used && *number < SIM_SLOTS; ++*number)
        if (sim_slot_lives(in->state, in->fd, *number) &&
            sim_slot_pid(in->state, in->fd, *number) == (uint32_t)pid)
            return &in->state->slots[*number];
    return NULL;
}

/* The process, and this process's view of the driver, which stays. */
static CUresult find(int pid, const char *step, struct driver **in, struct sim_slot **slot)
{
    uint32_t number;
    CU_TRY(api_attach());
    *in = driver();
    struct sim_version version = (*in)->root.description.cuda_version;
    *slot = slot_at(*in, pid, &number);
    api_leave();
    if (version.major < SINCE_MAJOR || (version.major == SINCE_MAJOR && version.minor < SINCE_MINOR))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!*slot)
        return kill(pid, 0) == 0 || errno == EPERM ? CUDA_ERROR_NOT_INITIALIZED
                                                   : CUDA_ERROR_OPERATING_SYSTEM;
    step_delay(*in, step);
    return CUDA_SUCCESS;
}

static bool is_quiet(struct sim_slot *slot)
{
    return !atomic_load(&slot->inside) && !atomic_load(&slot->pending);
}

static void set(struct sim_slot *slot, uint32_t state)
{
    atomic_store(&slot->process, state);
    syscall(SYS_futex, &slot->process, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Who was to lock it may have been killed. */
static uint32_t state_of(struct sim_slot *slot)
{
    uint32_t state = atomic_load(&slot->process);
    if (state == SIM_PROCESS_LOST)
        return CU_PROCESS_STATE_CHECKPOINTED;
    if (state != SIM_PROCESS_LOCKING)
        return state;
    return is_quiet(slot) ? CU_PROCESS_STATE_LOCKED : CU_PROCESS_STATE_RUNNING;
}

CU_API CUresult cuCheckpointProcessGetState(int pid, int *state)
{
    struct driver *in;
    struct sim_slot *slot;
    CU_ARGUMENT(state);
    CU_TRY(find(pid, "state", &in, &slot));
    *state = (int)state_of(slot);
    return CUDA_SUCCESS;
}

CU_API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
    struct driver *in;
    struct sim_slot *slot;
    CU_ARGUMENT(thread);
    CU_TRY(find(pid, "thread", &in, &slot));
    *thread = pid;
    return CUDA_SUCCESS;
}

CU_API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
    struct driver *in;
    struct sim_slot *slot;
    uint32_t number, state = CU_PROCESS_STATE_RUNNING;
    CU_TRY(find(pid, "lock", &in, &slot));
    uint64_t most = args ? args->timeoutMs * UINT64_C(1000000) : 0, begin = sim_now();
    if (!atomic_compare_exchange_strong(&slot->process, &state, SIM_PROCESS_LOCKING) &&
        state != SIM_PROCESS_LOCKING)
        return CUDA_ERROR_ILLEGAL_STATE;
    while (!is_quiet(slot)) {
        CU_ARGUMENT(slot_at(in, pid, &number) == slot);
        if (most && sim_now() - begin > most) {
            set(slot, CU_PROCESS_STATE_RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        usleep(LOOK_NS / 1000);
    }
    set(slot, CU_PROCESS_STATE_LOCKED);
    return CUDA_SUCCESS;
}

/* Whether this process has it and another one, too. */
static bool is_shared(const struct sim_export *export, uint32_t number)
{
    bool own = false, other = false;
    for (uint32_t word = 0; word < SIM_SLOTS / 64; word++) {
        uint64_t bits = atomic_load(&export->holders[word]);
        uint64_t mine = word == number / 64 ? UINT64_C(1) << number % 64 : 0;
        own = own || bits & mine;
        other = other || bits & ~mine;
    }
    return own && other;
}

/* What the driver cannot save: managed memory, and memory that other processes have, too. */
static bool can_save(const struct driver *in, const struct sim_slot *slot, uint32_t number)
{
    for (uint32_t i = 0; i < SIM_USES; i++)
        if (atomic_load(&slot->uses[i].managed))
            return false;
    for (uint32_t i = 0; i < SIM_EXPORTS; i++)
        if (atomic_load(&in->state->exports[i].id) && is_shared(&in->state->exports[i], number))
            return false;
    return true;
}

CU_API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointArgs *args)
{
    struct driver *in;
    struct sim_slot *slot;
    (void)args;
    CU_TRY(find(pid, "checkpoint", &in, &slot));
    CU_REQUIRE(state_of(slot) == CU_PROCESS_STATE_LOCKED, CUDA_ERROR_ILLEGAL_STATE);
    CU_REQUIRE(can_save(in, slot, (uint32_t)(slot - in->state->slots)), CUDA_ERROR_NOT_SUPPORTED);
    CU_REQUIRE(ledger_lock(in), CUDA_ERROR_OPERATING_SYSTEM);
    for (uint32_t i = 0; i < SIM_USES; i++) {
        uint64_t bytes = atomic_load(&slot->uses[i].bytes);
        if (bytes)
            atomic_store(&slot->uses[i].saved, bytes);
        atomic_store(&slot->uses[i].bytes, 0);
    }
    set(slot, CU_PROCESS_STATE_CHECKPOINTED);
    ledger_unlock(in);
    return CUDA_SUCCESS;
}

static uint64_t capacity_of(const struct driver *in, uint32_t partition)
{
    const struct sim_gpu *gpu = &in->root.description.gpus[partition / (1 + SIM_MAX_MIG)];
    uint32_t mig = partition % (1 + SIM_MAX_MIG);
    return mig ? gpu->mig[mig - 1].memory : gpu->memory - gpu->reserved_memory;
}

/* A use that is restored already, by one that was killed, counts for what others have. */
static bool has_room(const struct driver *in, const struct sim_slot *slot)
{
    for (uint32_t i = 0; i < SIM_USES; i++) {
        const struct sim_use *use = &slot->uses[i];
        uint32_t partition = atomic_load(&use->partition) - 1;
        uint64_t saved = atomic_load(&use->saved);
        if (!saved || atomic_load(&use->bytes))
            continue;
        uint64_t used = sim_partition_bytes(in->state, in->fd, SIM_SLOTS, partition);
        if (saved > capacity_of(in, partition) || used > capacity_of(in, partition) - saved)
            return false;
    }
    return true;
}

/* As with driver 580, a restore without room is the last one. */
CU_API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointArgs *args)
{
    struct driver *in;
    struct sim_slot *slot;
    (void)args;
    CU_TRY(find(pid, "restore", &in, &slot));
    CU_REQUIRE(state_of(slot) == CU_PROCESS_STATE_CHECKPOINTED, CUDA_ERROR_ILLEGAL_STATE);
    CU_REQUIRE(atomic_load(&slot->process) != SIM_PROCESS_LOST, CUDA_ERROR_OPERATING_SYSTEM);
    CU_REQUIRE(ledger_lock(in), CUDA_ERROR_OPERATING_SYSTEM);
    bool room = has_room(in, slot);
    for (uint32_t i = 0; room && i < SIM_USES; i++)
        if (atomic_load(&slot->uses[i].saved)) {
            atomic_store(&slot->uses[i].bytes, atomic_load(&slot->uses[i].saved));
            atomic_store(&slot->uses[i].saved, 0);
        }
    set(slot, room ? CU_PROCESS_STATE_LOCKED : SIM_PROCESS_LOST);
    ledger_unlock(in);
    return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointArgs *args)
{
    struct driver *in;
    struct sim_slot *slot;
    (void)args;
    CU_TRY(find(pid, "unlock", &in, &slot));
    uint32_t state = atomic_load(&slot->process);
    CU_REQUIRE(state == CU_PROCESS_STATE_LOCKED || state == SIM_PROCESS_LOCKING, CUDA_ERROR_ILLEGAL_STATE);
    set(slot, CU_PROCESS_STATE_RUNNING);
    return CUDA_SUCCESS;
}
