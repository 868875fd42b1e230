/* The commands of vgpu_tool in which what a call answers, or is given, changes while it works, as another thread can bring
 * about: what the shim and the driver so took for two things, they keep. */
#include "vgpu_tool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define LARGE (UINT64_C(6) << 30)

enum { PAGE_BYTES = 65536 };

/* A word, at the beginning of a page of its own. */
static struct {
    volatile uint64_t *word;
    volatile uint64_t taken; /* what was there before */
    uint64_t with;           /* what it becomes */
    bool given;              /* to the call; else the call answers there */
    int after;               /* so many times that it is read, or written */
} change;

static void *new_page(void)
{
    void *page =
        mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    change.word = page;
    return page;
}

#ifdef __x86_64__
enum { SINGLE_STEP = 0x100 };

static void protect(int how)
{
    mprotect((void *)change.word, PAGE_BYTES, how);
}

static void let_pass(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    protect(PROT_READ | PROT_WRITE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= SINGLE_STEP;
}

static void passed(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~SINGLE_STEP;
    if (--change.after > 0) {
        protect(change.given ? PROT_NONE : PROT_READ);
        return;
    }
    change.taken = *change.word;
    *change.word = change.with;
}

static void begin(bool given, uint64_t with, int after)
{
    change.given = given;
    change.with = with;
    change.after = after;
    change.taken = 0;
    sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = let_pass, .sa_flags = SA_SIGINFO}, NULL);
    sigaction(SIGTRAP, &(struct sigaction){.sa_sigaction = passed, .sa_flags = SA_SIGINFO}, NULL);
    protect(given ? PROT_NONE : PROT_READ);
}

static void end(void)
{
    protect(PROT_READ | PROT_WRITE);
    signal(SIGSEGV, SIG_DFL);
}
#else /* a thread does what it can */
static _Atomic bool begun, over;
static pthread_t other;

static void *work(void *first)
{
    for (; !over; begun = true) {
        uint64_t now = *change.word;
        if (now == change.with && change.given)
            *change.word = (uintptr_t)first;
        if (now == change.with || (!change.given && now == (uintptr_t)first))
            continue;
        *change.word = change.with;
        change.taken = now;
    }
    return NULL;
}

static void begin(bool given, uint64_t with, int after)
{
    change.given = given;
    change.with = with;
    change.after = after;
    change.taken = 0;
    begun = over = false;
    pthread_create(&other, NULL, work, (void *)(uintptr_t)*change.word);
    while (!begun)
        ;
}

static void end(void)
{
    over = true;
    pthread_join(other, NULL);
}
#endif

/* The driver's own function is there before the shim's is. */
static CUresult addresses(void)
{
    typedef CUresult (*allocate)(CUdeviceptr *, size_t);
    int status;
    CUdeviceptr kept;
    void **found = new_page();
    begin(false, 0, 1);
    CUresult result = CU(cuGetProcAddress_v2)("cuMemAlloc", found, 12000, 0, &status);
    end();
    if (!result && change.taken)
        ((allocate)(uintptr_t)change.taken)(&kept, LARGE);
    return result;
}

/* A kernel that the shim is not to know, of a library that comes to the device with the launch. */
static CUresult kernels(bool listed)
{
    static const char text[] =
        ".version 8.0\n.target sm_90\n.address_size 64\n"
        ".global .align 4 .b8 data[6442450944];\n.visible .entry work()\n{\nret;\n}\n";
    type_cuCtxSetCurrent make_current = CU(cuCtxSetCurrent);
    CUlibrary library;
    CUkernel *found = new_page();
    make_current(NULL);
    CUresult result = CU(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0);
    if (result)
        return result;
    begin(false, 0, 1);
    result = listed ? CU(cuLibraryEnumerateKernels)(found, 1, library)
                    : CU(cuLibraryGetKernel)(found, library, "work");
    end();
    make_current(primary_context());
    CUfunction kernel = (CUfunction)(uintptr_t)change.taken;
    if (!result && kernel)
        CU(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, *tool_stream(), NULL, NULL);
    return result;
}

/* What the call answers becomes a context that has memory, in whose name the shim then counts. */
static CUresult contexts(char **word)
{
    bool primary = IS("primarychanges");
    CUcontext large, *found = new_page();
    CUdeviceptr kept;
    CUresult result = CU(cuCtxCreate_v2)(&large, 0, 0);
    if (!result)
        result = CU(cuMemAlloc_v2)(&kept, 768 << 20);
    for (uint64_t i = 0; i < number(word[1]) && !result; i++) {
        begin(false, (uintptr_t)large, 1);
        result = primary ? CU(cuDevicePrimaryCtxRetain)(found, 0) : CU(cuCtxCreate_v2)(found, 0, 0);
        end();
        if (primary && !result)
            result = CU(cuDevicePrimaryCtxRelease_v2)(0);
    }
    return result == 2 ? 0 : result; /* no more memory */
}

/* A graph, a module without local memory and one with: nodes get the function of one, and then of the other. */
static CUresult functions(char **word)
{
    enum { READS = 12 };
    type_cuModuleGetFunction get = CU(cuModuleGetFunction);
    CUfunction small, large;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS *params = new_page();
    CUresult result = get(&small, *kept_object(word[2]), "work");
    if (!result)
        result = get(&large, *kept_object(word[3]), "work");
    for (int after = 1; !result && after <= READS; after++) {
        *params = (CUDA_KERNEL_NODE_PARAMS){.func = small, SHAPE(1, 1)};
        begin(true, (uintptr_t)large, after);
        CU(cuGraphAddKernelNode_v2)(&node, *kept_object(word[1]), NULL, 0, params);
        end();
    }
    return result;
}

struct late {
    CUgraph graph;
    uint64_t steps;
    pthread_barrier_t start;
};

static void *add_late(void *data)
{
    struct late *self = data;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {1, 0}},
                                         .bytesize = LARGE};
    CU(cuCtxSetCurrent)(primary_context());
    pthread_barrier_wait(&self->start);
    for (volatile uint64_t i = 0; i < self->steps; i++)
        ;
    CU(cuGraphAddMemAllocNode)(&node, self->graph, NULL, 0, &params);
    return NULL;
}

/* A node with memory is added while the graph is instantiated, each time a little later. */
static CUresult late_nodes(uint64_t rounds)
{
    enum { NODES = 30000, STEP = 50000 };
    CUresult result = 0, launched = -1;
    struct late late = {0};
    type_cuGraphAddEmptyNode add = CU(cuGraphAddEmptyNode);
    pthread_barrier_init(&late.start, NULL, 2);
    for (uint64_t i = 0; i < rounds && !result && launched; i++) {
        CUgraphExec instance = NULL;
        CUgraphNode node;
        pthread_t thread;
        result = CU(cuGraphCreate)(&late.graph, 0);
        for (int n = 0; n < NODES && !result; n++)
            result = add(&node, late.graph, NULL, 0);
        late.steps = i * STEP;
        pthread_create(&thread, NULL, add_late, &late);
        pthread_barrier_wait(&late.start);
        bool made = CU(cuGraphInstantiateWithFlags)(&instance, late.graph, 0) == 0;
        pthread_join(thread, NULL);
        uint64_t reserved = 0;
        if (made && CU(cuGraphLaunch)(instance, *tool_stream()) == 0 &&
            CU(cuDeviceGetGraphMemAttribute)(0, 2, &reserved) == 0 && reserved)
            launched = 0; /* and who looks sees what it took */
        else if (made)
            CU(cuGraphExecDestroy)(instance);
        CU(cuGraphDestroy)(late.graph);
    }
    return result;
}

CUresult places(char **word)
{
    if (IS("contextchanges") || IS("primarychanges")) /* times */
        return contexts(word);
    if (IS("functionchanges")) /* graph, module, module with local memory */
        return functions(word);
    return IS("addresschanges")  ? addresses()
           : IS("kernelchanges") ? kernels(false)
           : IS("listchanges")   ? kernels(true)
           : IS("graphraces")    ? late_nodes(number(word[1])) /* times */
                                 : -1;
}
