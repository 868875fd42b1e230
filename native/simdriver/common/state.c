#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t sim_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct sim_state *sim_state_map(const struct sim_root *root, bool writable, int *fd, char *message,
                                size_t size)
{
    char path[SIM_MAX_PATH];
    struct stat st;
    if (!sim_root_join(root, SIM_STATE_PATH, path)) {
        snprintf(message, size, "the path of the state is too long");
        return NULL;
    }
    *fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    if (*fd < 0) {
        snprintf(message, size, "%s: %s", path, strerror(errno));
        return NULL;
    }
    /* Low numbers belong to the program: some close them by number. Only the writer (libcuda, before it takes a
     * lock) may do this: the close would drop the locks of a libcuda in the same process. */
    int high = writable ? fcntl(*fd, F_DUPFD_CLOEXEC, 512) : -1;
    if (high >= 0) {
        close(*fd);
        *fd = high;
    }
    struct sim_state *state = MAP_FAILED;
    if (syscall(SYS_fstat, *fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)sizeof(*state))
        state = mmap(NULL, sizeof(*state), PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, *fd, 0);
    if (state == MAP_FAILED) {
        snprintf(message, size, "%s: cannot be mapped", path);
    } else if (state->magic != SIM_STATE_MAGIC || state->version != SIM_STATE_VERSION ||
               state->size != sizeof(*state)) {
        snprintf(message, size, "%s: not a state of version %d", path, SIM_STATE_VERSION);
        munmap(state, sizeof(*state));
    } else {
        return state;
    }
    close(*fd);
    *fd = -1;
    return NULL;
}

bool sim_slot_lives(const struct sim_state *state, int fd, uint32_t slot)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SIM_LOCK_SLOTS + 2 * (off_t)slot, .l_len = 1};
    if (!atomic_load(&state->slots[slot].token))
        return false;
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

uint32_t sim_slot_pid(const struct sim_state *state, int fd, uint32_t slot)
{
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = SIM_LOCK_SLOTS + 2 * (off_t)slot + 1,
                         .l_len = 1};
    if (fcntl(fd, F_GETLK, &lock) != 0)
        return 0;
    if (lock.l_type != F_UNLCK)
        return lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0; /* 0 or -1: in a namespace that we cannot see */
    /* A process does not conflict with itself. */
    uint32_t pid = atomic_load(&state->slots[slot].pid);
    return pid == (uint32_t)getpid() ? pid : 0;
}

uint64_t sim_slot_bytes(const struct sim_state *state, uint32_t slot, uint32_t partition)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < SIM_USES; i++)
        if (atomic_load(&state->slots[slot].uses[i].partition) == partition + 1)
            bytes += atomic_load(&state->slots[slot].uses[i].bytes);
    uint32_t exports = atomic_load(&state->exports_used);
    for (uint32_t i = 0; i < exports && i < SIM_EXPORTS; i++) {
        const struct sim_export *export = &state->exports[i];
        if (atomic_load(&export->id) && atomic_load(&export->partition) == partition &&
            atomic_load(&export->owner) == slot)
            bytes += atomic_load(&export->bytes);
    }
    return bytes;
}

static bool has_living_holder(const struct sim_state *state, int fd, uint32_t self,
                              const struct sim_export *export)
{
    for (uint32_t word = 0; word < SIM_SLOTS / 64; word++) {
        uint64_t bits = atomic_load(&export->holders[word]);
        for (; bits; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
            if (slot == self || sim_slot_lives(state, fd, slot))
                return true;
        }
    }
    return false;
}

uint64_t sim_partition_bytes(const struct sim_state *state, int fd, uint32_t self, uint32_t partition)
{
    uint64_t bytes = 0;
    uint32_t used = atomic_load(&state->slots_used);
    for (uint32_t slot = 0; slot < used && slot < SIM_SLOTS; slot++) {
        uint64_t own = 0;
        for (uint32_t i = 0; i < SIM_USES; i++) {
            const struct sim_use *use = &state->slots[slot].uses[i];
            if (atomic_load(&use->partition) == partition + 1)
                own += atomic_load(&use->bytes) + atomic_load(&use->managed);
        }
        if (own && (slot == self || sim_slot_lives(state, fd, slot)))
            bytes += own;
    }
    uint32_t exports = atomic_load(&state->exports_used);
    for (uint32_t i = 0; i < exports && i < SIM_EXPORTS; i++) {
        const struct sim_export *export = &state->exports[i];
        if (atomic_load(&export->id) && atomic_load(&export->partition) == partition &&
            has_living_holder(state, fd, self, export))
            bytes += atomic_load(&export->bytes);
    }
    return bytes;
}

uint32_t sim_use_utilization(const struct sim_use *use)
{
    uint64_t now = sim_now() / 1000000000, second = atomic_load(&use->second);
    uint64_t busy = second == now       ? atomic_load(&use->last_second_ns)
                    : second + 1 == now ? atomic_load(&use->this_second_ns)
                                        : 0;
    return busy > 1000000000 ? 100 : (uint32_t)(busy / 10000000);
}

uint32_t sim_partition_utilization(const struct sim_state *state, uint32_t partition)
{
    const struct sim_partition *from = &state->partitions[partition];
    uint64_t now = sim_now() / SIM_HISTORY_NS, busy = 0;
    for (uint32_t i = 0; i < SIM_HISTORY; i++) {
        uint64_t period = atomic_load(&from->history[i].period);
        if (period < now && period + 10 >= now)
            busy += atomic_load(&from->history[i].busy_ns);
    }
    uint64_t percent = busy * 100 / (10 * (uint64_t)SIM_HISTORY_NS);
    return percent > 100 ? 100 : (uint32_t)percent;
}
