/* Ways of take_time that change what a call was given while it works, as another thread can. The first part of it is on a page
 * that cannot be read at first: who reads that, changes the rest. So whoever has looked at the rest alone saw something else. */
#include "take_time.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 65536 };

static char *page;
static void (*change)(void);

static void changes(int number)
{
    (void)number;
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    change();
}

/* Room for something whose first bytes are on the page. */
static void *new_place(size_t first, void (*by)(void))
{
    page = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        failed("mmap", 1);
    change = by;
    signal(SIGSEGV, changes);
    return page + PAGE - first;
}

static struct { /* CUlaunchConfig */
    unsigned shape[6], shared;
    Handle stream;
    void *attributes;
    unsigned count;
} * configuration;
static Handle idle, busy;

static void to_busy(void)
{
    configuration->stream = busy;
}

static CUresult changed LAUNCH
{
    (void)extra, (void)stream;
    static CUresult (*call)(const void *, Handle, void **, void **);
    unsigned shape[6] = {gx, gy, gz, bx, by, bz};
    if (!call)
        *(void **)&call = entry("cuLaunchKernelEx");
    memcpy(configuration->shape, shape, sizeof(shape));
    configuration->shared = shared;
    configuration->stream = idle;
    mprotect(page, PAGE, PROT_NONE);
    CUresult result = call(configuration, kernel, values, NULL);
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    return result;
}

static void changing_the_stream(void)
{
    idle = new_stream();
    busy = new_stream();
    configuration = new_place(32, to_busy);
    launcher = changed;
    while (more())
        launch(busy, 4000);
}

const struct way change_ways[] = {{"changed-stream", changing_the_stream, false}, {0}};
