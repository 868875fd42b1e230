/* The commands of vgpu_tool in which two threads are at one address or handle at once, as the shim's books are behind the
 * driver: each keeps what the books have lost. */
#include "vgpu_tool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 128 << 20, PLACES = 4, LOADS = 3 };

struct race {
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    bool maps; /* the slow thread maps, else it unmaps */
    pthread_barrier_t barrier;
    _Atomic bool over;
};

/* It is interrupted more often than the other between the driver's answer and the books. */
static void *slow(void *data)
{
    struct race *race = data;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    CU(cuCtxSetCurrent)(primary_context());
    for (;;) {
        pthread_barrier_wait(&race->barrier);
        if (race->over)
            return NULL;
        if (race->maps)
            CU(cuMemMap)(race->at, SIZE, 0, race->handle, 0);
        else
            CU(cuMemUnmap)(race->at, SIZE);
        pthread_barrier_wait(&race->barrier);
    }
}

static void *busy(void *data)
{
    struct race *race = data;
    while (!race->over)
        ;
    return NULL;
}

static uint64_t books(void)
{
    size_t left = 0, total = 0;
    CU(cuMemGetInfo_v2)(&left, &total);
    return total - left;
}

static CUresult create(CUmemGenericAllocationHandle *out)
{
    CUmemAllocationProp properties = {.type = 1, .location = {1, 0}};
    return CU(cuMemCreate)(out, SIZE, &properties, 0);
}

/* The other thread maps a block: once the driver shows it there, its handle goes. */
static CUresult release_at_once(struct race *race)
{
    CUmemGenericAllocationHandle again;
    CUresult result = create(&race->handle);
    if (result)
        return result;
    pthread_barrier_wait(&race->barrier);
    int tries = 0;
    while (CU(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)race->at) && tries < 10000)
        tries++;
    if (tries < 10000)
        CU(cuMemRelease)(again);
    CU(cuMemRelease)(race->handle);
    pthread_barrier_wait(&race->barrier);
    return 0;
}

/* The other thread unmaps a block: once the driver has nothing there, another one is. */
static CUresult map_at_once(struct race *race, CUmemGenericAllocationHandle first)
{
    CUmemGenericAllocationHandle next;
    CU(cuMemMap)(race->at, SIZE, 0, first, 0);
    CUresult result = create(&next);
    if (result) {
        CU(cuMemUnmap)(race->at, SIZE);
        return result;
    }
    pthread_barrier_wait(&race->barrier);
    for (int tries = 0; CU(cuMemMap)(race->at, SIZE, 0, next, 0) && tries < 100000; tries++)
        ;
    CU(cuMemRelease)(next);
    pthread_barrier_wait(&race->barrier);
    return 0;
}

/* So many times; a mapping stays where it is not in the books. */
static CUresult mappings(int rounds, bool maps)
{
    struct race race = {.maps = maps};
    CUdeviceptr places[PLACES];
    CUmemGenericAllocationHandle first = 0;
    pthread_t other, load[LOADS];
    int place = 0;
    CUresult result = maps ? 0 : create(&first);
    for (int i = 0; !result && i < PLACES; i++)
        result = CU(cuMemAddressReserve)(&places[i], SIZE, 0, 0, 0);
    if (result)
        return result;
    pthread_barrier_init(&race.barrier, NULL, 2);
    pthread_create(&other, NULL, slow, &race);
    for (int i = 0; i < LOADS; i++)
        pthread_create(&load[i], NULL, busy, &race);
    uint64_t before = books();
    for (int i = 0; i < rounds && place < PLACES && !result; i++) {
        race.at = places[place];
        result = maps ? release_at_once(&race) : map_at_once(&race, first);
        if (!result && books() == before && place < PLACES - 1)
            place++;
        else
            CU(cuMemUnmap)(race.at, SIZE);
    }
    race.over = true;
    pthread_barrier_wait(&race.barrier);
    pthread_join(other, NULL);
    for (int i = 0; i < LOADS; i++)
        pthread_join(load[i], NULL);
    return result;
}

struct twin {
    CUdeviceptr at;
    CUipcMemHandle handle;
    pthread_barrier_t *barrier;
    CUresult result;
};

static void *get_handle(void *data)
{
    struct twin *twin = data;
    CU(cuCtxSetCurrent)(primary_context());
    pthread_barrier_wait(twin->barrier);
    twin->result = CU(cuIpcGetMemHandle)(&twin->handle, twin->at);
    return NULL;
}

/* Two threads ask for a handle of the same memory: it goes to a file. */
static CUresult handles(char **word)
{
    pthread_barrier_t barrier;
    pthread_t other;
    struct twin twins[2] = {{.at = *kept_number(word[1]), .barrier = &barrier},
                            {.at = *kept_number(word[1]), .barrier = &barrier}};
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&other, NULL, get_handle, &twins[0]);
    get_handle(&twins[1]);
    pthread_join(other, NULL);
    FILE *out = fopen(word[2], "w");
    if (!out || fwrite(&twins[1].handle, sizeof(CUipcMemHandle), 1, out) != 1)
        return -2;
    fclose(out);
    return twins[0].result ? twins[0].result : twins[1].result;
}

/* From now on a call of the system does nothing, and answers with this errno; 0: as if it had. */
static CUresult answer_for(const char *name, uint64_t error)
{
    static const struct {
        const char *name;
        unsigned int number;
    } calls[] = {{"fcntl", SYS_fcntl},         {"openat", SYS_openat},  {"pread", SYS_pread64},
                 {"pwrite", SYS_pwrite64},     {"fstat", SYS_fstat},    {"getrandom", SYS_getrandom},
                 {"nanosleep", SYS_nanosleep}, {"madvise", SYS_madvise}};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct sock_filter lines[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned int)error),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof(lines) / sizeof(lines[0]), lines};
        if (strcmp(calls[i].name, name) == 0)
            return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) |
                   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    }
    return -2;
}

CUresult races(char **word)
{
    if (IS("answerfor"))
        return answer_for(word[1], number(word[2]));
    if (IS("ipcgettwice"))
        return handles(word);
    return IS("mapraces")     ? mappings((int)number(word[1]), true)
           : IS("unmapraces") ? mappings((int)number(word[1]), false)
                              : -1;
}
