/* This process's entries in the shared state.
 *
 * One OFD lock on the ledger's byte makes sum and charge one step; the kernel releases it when a process dies, and
 * as every charge is a single store there is nothing to repair. */
#include "driver.h"
#include "limit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* getrandom(2) without the symbol getrandom@GLIBC_2.25. */
static uint64_t draw_number(void)
{
    uint64_t number = 0;
    if (syscall(SYS_getrandom, &number, sizeof(number), 0) != sizeof(number) || !number)
        number = sim_now() << 16 | ((uint64_t)getpid() & 0xffff) | 1;
    return number;
}

static int lock_byte(int fd, int command, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(fd, command, &lock);
    } while (result != 0 && errno == EINTR);
    return result;
}

static bool is_state(const struct driver *in, int fd)
{
    struct stat st;
    return syscall(SYS_fstat, fd, &st) == 0 && st.st_ino == in->state_inode && st.st_dev == in->state_device;
}

/* Programs close descriptors that are not theirs. Our slot stays locked, as the mapping holds the file open; for
 * further locks the state is opened again. */
static bool has_descriptor(struct driver *in)
{
    char path[SIM_MAX_PATH];
    if (is_state(in, in->fd))
        return true;
    if (!sim_root_join(&in->root, SIM_STATE_PATH, path))
        return false;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 512);
    if (fd >= 0)
        close(fd);
    if (high < 0 || !is_state(in, high)) {
        if (high >= 0)
            close(high);
        return false;
    }
    in->fd = high;
    lock_byte(high, F_SETLK, F_WRLCK, SIM_LOCK_SLOTS + 2 * (off_t)in->slot + 1);
    return true;
}

/* Takes a holder off; what nobody holds any more is free, what another holds is shown under that one. */
static void release(struct sim_export *export, uint32_t slot)
{
    uint64_t left = 0;
    atomic_fetch_and(&export->holders[slot / 64], ~(UINT64_C(1) << slot % 64));
    for (uint32_t word = 0; word < SIM_SLOTS / 64; word++) {
        uint64_t bits = atomic_load(&export->holders[word]);
        if (bits && atomic_load(&export->owner) == slot)
            atomic_store(&export->owner, word * 64 + (uint32_t)__builtin_ctzll(bits));
        left |= bits;
    }
    if (!left)
        atomic_store(&export->id, 0);
}

/* A dead owner's slot becomes ours: its charges go, its exports lose a holder. */
static void reap(struct sim_state *state, uint32_t slot)
{
    for (uint32_t i = 0; i < SIM_USES; i++) {
        struct sim_use *use = &state->slots[slot].uses[i];
        atomic_store(&use->partition, 0);
        atomic_store(&use->bytes, 0);
        atomic_store(&use->managed, 0);
        atomic_store(&use->busy_ns, 0);
        atomic_store(&use->saved, 0);
        atomic_store(&use->this_second_ns, 0);
        atomic_store(&use->last_second_ns, 0);
    }
    atomic_store(&state->slots[slot].process, CU_PROCESS_STATE_RUNNING);
    atomic_store(&state->slots[slot].inside, 0);
    atomic_store(&state->slots[slot].pending, 0);
    for (uint32_t i = 0; i < SIM_EXPORTS; i++)
        if (atomic_load(&state->exports[i].id))
            release(&state->exports[i], slot);
    for (uint32_t i = 0; i < SIM_PARTITIONS; i++) {
        uint32_t turn = slot + 1;
        atomic_compare_exchange_strong(&state->partitions[i].turn, &turn, 0);
        atomic_fetch_and(&state->partitions[i].wanted[slot / 64], ~(UINT64_C(1) << slot % 64));
        atomic_fetch_and(&state->partitions[i].together[slot / 64], ~(UINT64_C(1) << slot % 64));
    }
}

static bool claim(struct driver *in)
{
    struct sim_state *state = in->state;
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        if (lock_byte(in->fd, F_OFD_SETLK, F_WRLCK, SIM_LOCK_SLOTS + 2 * (off_t)slot) != 0)
            continue;
        reap(state, slot);
        /* Names the process to NVML, in whatever pid namespace that runs. */
        lock_byte(in->fd, F_SETLK, F_WRLCK, SIM_LOCK_SLOTS + 2 * (off_t)slot + 1);
        in->token = draw_number();
        atomic_store(&state->slots[slot].pid, (uint32_t)getpid());
        atomic_store(&state->slots[slot].token, in->token);
        in->slot = slot;
        if (atomic_load(&state->slots_used) <= slot)
            atomic_store(&state->slots_used, slot + 1);
        return true;
    }
    return false;
}

/* Whoever can write the state can take it. */
bool ledger_has_slot(const struct driver *in)
{
    return in->slot < SIM_SLOTS && atomic_load(&in->state->slots[in->slot].token) == in->token;
}

bool ledger_lock(const struct driver *in)
{
    return lock_byte(in->fd, F_OFD_SETLKW, F_WRLCK, SIM_LOCK_LEDGER) == 0;
}

void ledger_unlock(const struct driver *in)
{
    lock_byte(in->fd, F_OFD_SETLK, F_UNLCK, SIM_LOCK_LEDGER);
}

/* Enters the ledger with a slot of our own. */
static bool enter(struct driver *in)
{
    if (!has_descriptor(in) || (in->slot < SIM_SLOTS && !ledger_has_slot(in)))
        return false;
    if (!ledger_lock(in))
        return false;
    if (in->slot < SIM_SLOTS || claim(in))
        return true;
    ledger_unlock(in);
    return false;
}

/* The entry for a partition, made if it is missing; NULL: no room, or no slot yet. */
static struct sim_use *use_of(struct driver *in, uint32_t partition)
{
    struct sim_use *spare = NULL;
    for (uint32_t i = 0; ledger_has_slot(in) && i < SIM_USES; i++) {
        struct sim_use *use = &in->state->slots[in->slot].uses[i];
        uint32_t number = atomic_load(&use->partition);
        if (number == partition + 1)
            return use;
        if (!number && !spare)
            spare = use;
    }
    if (spare)
        atomic_store(&spare->partition, partition + 1);
    return spare;
}

static uint64_t ledger_used(struct device *device)
{
    struct driver *in = driver();
    uint64_t used = sim_partition_bytes(in->state, in->fd, in->slot, device->partition);
    return used < device->capacity ? used : device->capacity;
}

static uint64_t lesser(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

void ledger_room(struct device *device, bool leaf, uint64_t *total, uint64_t *room)
{
    struct driver *in = driver();
    const struct sim_limit *limit = device->mig ? NULL : sim_own_limit(in->state, device->partition, leaf);
    *total = device->capacity;
    *room = device->capacity - ledger_used(device);
    if (limit) {
        uint64_t hard = atomic_load(&limit->hard), cgroup = atomic_load(&limit->cgroup);
        uint64_t used = sim_cgroup_bytes(in->state, in->fd, in->slot, cgroup, device->partition);
        *total = lesser(*total, hard);
        *room = lesser(*room, used < hard ? hard - used : 0);
    }
}

/* The cgroup that a charge counts for: the one whose limit binds us, else our own. */
static void note_cgroup(struct driver *in, struct device *device)
{
    const struct sim_limit *limit = device->mig ? NULL : sim_own_limit(in->state, device->partition, false);
    if (ledger_has_slot(in))
        atomic_store(&in->state->slots[in->slot].cgroup,
                     limit ? atomic_load(&limit->cgroup) : sim_own_cgroup());
}

CUresult ledger_charge(struct device *device, uint64_t bytes)
{
    struct driver *in = driver();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t total, room;
    CU_REQUIRE(bytes <= device->capacity, CUDA_ERROR_OUT_OF_MEMORY);
    CU_REQUIRE(enter(in), CUDA_ERROR_OPERATING_SYSTEM);
    struct sim_use *use = use_of(in, device->partition);
    if (sim_has_limits(&in->root.description))
        note_cgroup(in, device);
    ledger_room(device, false, &total, &room);
    if (use && bytes <= room) {
        atomic_fetch_add(&use->bytes, bytes);
        result = CUDA_SUCCESS;
    }
    ledger_unlock(in);
    return result;
}

void ledger_refund(struct device *device, uint64_t bytes)
{
    struct sim_use *use = use_of(driver(), device->partition);
    if (use && atomic_load(&use->bytes) >= bytes)
        atomic_fetch_sub(&use->bytes, bytes);
}

void ledger_managed(struct device *device, int64_t bytes)
{
    struct sim_use *use = use_of(driver(), device->partition);
    if (use)
        atomic_fetch_add(&use->managed, (uint64_t)bytes);
}

static void use_busy(struct sim_use *use, uint64_t ns)
{
    uint64_t now = sim_now() / 1000000000, second = atomic_load(&use->second);
    if (second != now) {
        atomic_store(&use->last_second_ns, second + 1 == now ? atomic_load(&use->this_second_ns) : 0);
        atomic_store(&use->this_second_ns, 0);
        atomic_store(&use->second, now);
    }
    atomic_fetch_add(&use->this_second_ns, ns);
    atomic_fetch_add(&use->busy_ns, ns);
}

void ledger_busy(struct device *device, uint64_t ns)
{
    struct sim_partition *partition = &driver()->state->partitions[device->partition];
    uint64_t period = sim_now() / SIM_HISTORY_NS;
    struct sim_use *use = use_of(driver(), device->partition);
    if (use)
        use_busy(use, ns);
    ns /= device->engine.beside + 1; /* the others add theirs */
    atomic_fetch_add(&partition->busy_ns, ns);
    if (atomic_load(&partition->history[period % SIM_HISTORY].period) != period) {
        atomic_store(&partition->history[period % SIM_HISTORY].busy_ns, 0);
        atomic_store(&partition->history[period % SIM_HISTORY].period, period);
    }
    atomic_fetch_add(&partition->history[period % SIM_HISTORY].busy_ns, ns);
}

static struct sim_export *export_at(struct sim_state *state, uint64_t id)
{
    for (uint32_t i = 0; id && i < SIM_EXPORTS; i++)
        if (atomic_load(&state->exports[i].id) == id)
            return &state->exports[i];
    return NULL;
}

CUresult ledger_export(struct device *device, uint64_t bytes, uint64_t *id)
{
    struct driver *in = driver();
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    CU_REQUIRE(enter(in), CUDA_ERROR_OPERATING_SYSTEM);
    for (uint32_t i = 0; i < SIM_EXPORTS && result != CUDA_SUCCESS; i++) {
        struct sim_export *export = &in->state->exports[i];
        if (atomic_load(&export->id))
            continue;
        *id = draw_number();
        atomic_store(&export->bytes, bytes);
        atomic_store(&export->partition, device->partition);
        atomic_store(&export->owner, in->slot);
        atomic_fetch_or(&export->holders[in->slot / 64], UINT64_C(1) << in->slot % 64);
        atomic_store(&export->id, *id);
        if (atomic_load(&in->state->exports_used) <= i)
            atomic_store(&in->state->exports_used, i + 1);
        ledger_refund(device, bytes);
        result = CUDA_SUCCESS;
    }
    ledger_unlock(in);
    return result;
}

CUresult ledger_hold(uint64_t id)
{
    struct driver *in = driver();
    CU_REQUIRE(enter(in), CUDA_ERROR_OPERATING_SYSTEM);
    struct sim_export *export = export_at(in->state, id);
    if (export)
        atomic_fetch_or(&export->holders[in->slot / 64], UINT64_C(1) << in->slot % 64);
    ledger_unlock(in);
    return export ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void ledger_drop(uint64_t id)
{
    struct driver *in = driver();
    if (!enter(in))
        return;
    struct sim_export *export = export_at(in->state, id);
    if (export)
        release(export, in->slot);
    ledger_unlock(in);
}
