/* The commands of vgpu_tool for memory that is not free yet, and for what changes while the driver is asked. */
#include "vgpu_tool.h"

#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MANY = 8192, LOADS = 3 };

static void *entered(void *data)
{
    CU(cuCtxSetCurrent)(primary_context());
    return data;
}

/* The tool's stream waits for a word of the host's. */
static _Atomic uint32_t *place;

static CUresult hold(void)
{
    CUresult result = CU(cuMemHostAlloc)((void **)&place, 4096, 3);
    if (result)
        return result;
    *place = 0;
    return CU(cuStreamWaitValue32_v2)(*tool_stream(), (CUdeviceptr)(uintptr_t)place, 1, 1);
}

/* Count, size: blocks, all of which are freed behind what the stream waits for. */
static CUresult free_many(char **word)
{
    static CUdeviceptr many[MANY];
    uint64_t count = number(word[1]), made = 0;
    CUresult result = 0;
    while (made < count && made < MANY && !result)
        made += !(result = CU(cuMemAlloc_v2)(&many[made], number(word[2])));
    for (uint64_t i = 0; i < made; i++)
        CU(cuMemFreeAsync)(many[i], *tool_stream());
    return result;
}

/* The heap has room for what the driver needs from now on, whatever RLIMIT_AS says. */
static CUresult roomy_heap(void)
{
    enum { ROOM = 64 << 20 };
    mallopt(M_MMAP_THRESHOLD, 2 * ROOM);
    mallopt(M_TRIM_THRESHOLD, 4 * ROOM);
    char *room = malloc(ROOM);
    if (!room)
        return -2;
    memset(room, 1, ROOM);
    free(room);
    return 0;
}

/* No address space from now on but what there is. */
static CUresult no_more_space(void)
{
    uint64_t pages = 0;
    FILE *in = fopen("/proc/self/statm", "r");
    if (!in || fscanf(in, "%" SCNu64, &pages) != 1)
        return -2;
    fclose(in);
    uint64_t bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}) ? -2 : 0;
}

/* Count: as many entries of the books, with next to no memory. */
static CUresult crowd_books(char **word)
{
    CUdeviceptr at;
    CUresult result = 0;
    for (uint64_t i = 0; i < number(word[1]) && !result; i++)
        result = CU(cuMemAlloc_v2)(&at, 256);
    return result;
}

/* What the driver is asked for is now this, now that. */
struct flip {
    CUDA_ARRAY3D_DESCRIPTOR array;
    CUmemAllocationProp place;
    CUmemPoolProps pool;
    _Atomic bool begun, over;
};

static void *flip(void *data)
{
    struct flip *self = data;
    volatile size_t *width = &self->array.Width;
    volatile int *device = &self->place.location.id, *other = &self->pool.location.id;
    while (!self->over) {
        *width = 64;
        *device = *other = 1;
        for (int i = 0; i < 50; i++)
            *width = 64;
        *width = 8192;
        *device = *other = 0;
        for (int i = 0; i < 50; i++)
            *width = 8192;
        self->begun = true;
    }
    return NULL;
}

static uint64_t books(void)
{
    size_t left = 0, total = 0;
    CU(cuMemGetInfo_v2)(&left, &total);
    return total - left;
}

struct overwritten {
    volatile CUdeviceptr at;
    CUdeviceptr with;
    _Atomic bool begun, over;
};

static void *overwrite(void *data)
{
    struct overwritten *self = data;
    for (; !self->over; self->begun = true)
        self->at = self->with;
    return NULL;
}

/* Rounds: another thread writes the address of a small block to where that of a large one is to be, until the large one is in
 * the books by that name. The driver gives a large one the same address again. */
static CUresult answers(char **word)
{
    enum { LARGE = 256 << 20, SMALL = 2 << 20 };
    struct overwritten self = {0};
    CUdeviceptr large;
    pthread_t thread;
    CUresult result = CU(cuMemAlloc_v2)(&self.with, SMALL);
    if (!result)
        result = CU(cuMemAlloc_v2)(&large, LARGE);
    if (result || pthread_create(&thread, NULL, overwrite, &self))
        return result ? result : -2;
    while (!self.begun)
        ;
    for (uint64_t i = 0; i < number(word[1]) && !result; i++) {
        CU(cuMemFree_v2)(large);
        CU(cuMemAlloc_v2)((CUdeviceptr *)&self.at, LARGE);
        uint64_t all = books();
        CU(cuMemFree_v2)(self.with);
        if (all - books() > SMALL)
            break;
        result = CU(cuMemAlloc_v2)(&self.with, SMALL);
    }
    self.over = true;
    pthread_join(thread, NULL);
    return result;
}

/* What, rounds. */
static CUresult flips(char **word)
{
    struct flip self = {.array = {8192, 8192, 0, 0x20, 1, 0},
                        .place = {.type = 1, .location = {1, 0}},
                        .pool = {.allocType = 1, .location = {1, 0}}};
    CUarray array;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    CUdeviceptr at;
    pthread_t thread;
    pthread_create(&thread, NULL, flip, &self);
    while (!self.begun)
        ;
    for (uint64_t i = 0; i < number(word[2]); i++)
        if (strcmp(word[1], "array") == 0) {
            if (CU(cuArray3DCreate_v2)(&array, &self.array) == 0 && self.array.Width == 64)
                continue; /* kept, whichever it is */
        } else if (strcmp(word[1], "place") == 0) {
            CU(cuMemCreate)(&handle, 256 << 20, &self.place, 0);
        } else if (CU(cuMemPoolCreate)(&pool, &self.pool) == 0) {
            CU(cuMemAllocFromPoolAsync)(&at, 256 << 20, pool, *tool_stream());
        }
    self.over = true;
    pthread_join(thread, NULL);
    return 0;
}

/* Two threads in rounds: the slow one is interrupted more often, between the driver's answer and the books. */
struct race {
    pthread_barrier_t barrier;
    CUlibrary library;
    CUmodule module;
    const char *text;
    CUdeviceptr at;
    unsigned int round;
    CUresult result;
    void (*act)(struct race *);
    _Atomic bool over;
};

static void *slow(void *data)
{
    struct race *race = entered(data);
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19);
    for (;;) {
        pthread_barrier_wait(&race->barrier);
        if (race->over)
            return NULL;
        race->act(race);
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

/* `other` beside the slow thread's act, until it says that the books have lost something. */
static void run_rounds(struct race *race, uint64_t rounds, void (*act)(struct race *),
                       bool (*other)(struct race *), bool (*lost)(struct race *))
{
    pthread_t thread, load[LOADS];
    race->act = act;
    pthread_barrier_init(&race->barrier, NULL, 2);
    pthread_create(&thread, NULL, slow, race);
    for (int i = 0; i < LOADS; i++)
        pthread_create(&load[i], NULL, busy, race);
    for (uint64_t i = 0; i < rounds; i++) {
        pthread_barrier_wait(&race->barrier);
        bool acted = other(race);
        pthread_barrier_wait(&race->barrier);
        if (acted && lost(race))
            break;
    }
    race->over = true;
    pthread_barrier_wait(&race->barrier);
    pthread_join(thread, NULL);
    for (int i = 0; i < LOADS; i++)
        pthread_join(load[i], NULL);
}

static pthread_t launcher;
static _Atomic int launcher_id;

static void *launch(void *data)
{
    entered(NULL);
    launcher_id = (int)syscall(SYS_gettid);
    CU(cuGraphLaunch)(data, *tool_stream());
    return NULL;
}

/* The shim sleeps between two looks for memory. */
static CUresult await_launcher(void)
{
    char path[64];
    for (int tries = 0; tries < 500; tries++, usleep(1000)) {
        int number = -1;
        snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", launcher_id);
        FILE *in = launcher_id ? fopen(path, "r") : NULL;
        bool sleeps = in && fscanf(in, "%d", &number) == 1 && number == SYS_nanosleep;
        if (in)
            fclose(in);
        if (sleeps)
            return 0;
    }
    return -3;
}

static CUlibrary going;

/* Until the driver gives the handle of the one that goes. */
static bool load(struct race *race)
{
    CUlibrary library;
    CUmodule module;
    for (int tries = 0; tries < 200; tries++) {
        if (CU(cuLibraryLoadData)(&library, race->text, NULL, NULL, 0, NULL, NULL, 0))
            return false;
        if (library == going || !going)
            break;
        if (tries < 199)
            CU(cuLibraryUnload)(library);
    }
    race->result = CU(cuLibraryGetModule)(&module, library);
    race->library = library;
    return true;
}

static void unload(struct race *race)
{
    (void)race;
    CU(cuLibraryUnload)(going);
}

static uint64_t before;

/* The new library is not in the books; else it is the next to go. */
static bool forgotten(struct race *race)
{
    going = race->library;
    return books() < before;
}

/* Loaded beside 900 MiB that another thread frees meanwhile. */
static void free_meanwhile(struct race *race)
{
    race->round++;
    for (volatile unsigned int i = 0; i < race->round % 64 * 1000; i++)
        ; /* now sooner, now later in the loading */
    CU(cuMemFree_v2)(race->at);
}

static bool load_module(struct race *race)
{
    race->result = CU(cuModuleLoad)(&race->module, race->text);
    return true;
}

static bool fewer(struct race *race)
{
    if (race->result == 0 && books() < before)
        return true;
    if (race->result == 0)
        CU(cuModuleUnload)(race->module);
    return CU(cuMemAlloc_v2)(&race->at, UINT64_C(900) << 20) != 0;
}

CUresult held(char **word)
{
    static const char *const text = ".version 8.0\n.target sm_90\n.address_size 64\n"
                                    ".global .align 4 .b8 data[314572800];\n"
                                    ".visible .entry work()\n{\nret;\n}\n";
    struct race race = {.text = text};
    if (IS("hold"))
        return hold();
    if (IS("letgo"))
        return place && atomic_fetch_add(place, 1) == 0 ? 0 : -2;
    if (IS("freemany"))
        return free_many(word);
    if (IS("roomyheap"))
        return roomy_heap();
    if (IS("nomorespace"))
        return no_more_space();
    if (IS("crowdbooks"))
        return crowd_books(word);
    if (IS("answers"))
        return answers(word);
    if (IS("flips"))
        return flips(word);
    if (IS("launchaside")) /* instance: by another thread, until that waits for memory */
        return pthread_create(&launcher, NULL, launch, *kept_object(word[1])) ? -2 : await_launcher();
    if (IS("joinaside"))
        return pthread_join(launcher, NULL) ? -2 : 0;
    if (IS("libraryraces")) { /* rounds */
        if (!load(&race))
            return race.result;
        before = books();
        going = race.library;
        run_rounds(&race, number(word[1]), unload, load, forgotten);
        return 0;
    }
    if (IS("loadraces")) { /* rounds, the file of a module */
        race.text = word[2];
        if (!load_module(&race) || race.result)
            return race.result;
        before = books();
        CU(cuModuleUnload)(race.module);
        if (CU(cuMemAlloc_v2)(&race.at, UINT64_C(900) << 20))
            return -2;
        run_rounds(&race, number(word[1]), free_meanwhile, load_module, fewer);
        return 0;
    }
    return -1;
}
