/* The start of the driver in a process. */
#include "mps.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The one thing of static storage: CUDA's interface has no handle for the driver. It stays for the life of the
 * process, as the library is linked nodelete. */
static struct {
    pthread_once_t once;
    struct driver *driver;
    bool forked; /* this is the child of a process that used the driver */
} process = {.once = PTHREAD_ONCE_INIT};

static _Thread_local uint64_t own_number;

struct driver *driver(void)
{
    return __atomic_load_n(&process.driver, __ATOMIC_ACQUIRE);
}

uint64_t thread_number(void)
{
    static _Atomic uint64_t last;
    if (!own_number)
        own_number = atomic_fetch_add(&last, 1) + 1;
    return own_number;
}

/* As with the real driver, a child cannot go on with the parent's state. What it inherited keeps the parent's
 * memory charged until it ends or executes a program. */
static void after_fork(void)
{
    process.forked = driver() != NULL;
}

static void make_driver(void)
{
    pthread_condattr_t monotonic;
    struct driver *made =
        mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return;
    pthread_mutex_init(&made->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &monotonic);
    pthread_cond_init(&made->host_wake, &monotonic);
    for (int i = 0; i < SIM_MAX_GPUS; i++) {
        pthread_cond_init(&made->devices[i].engine.wake, &monotonic);
        made->devices[i].space.fd = -1;
    }
    pthread_condattr_destroy(&monotonic);
    made->fd = -1;
    made->slot = SIM_SLOTS;
    pthread_atfork(NULL, NULL, after_fork);
    __atomic_store_n(&process.driver, made, __ATOMIC_RELEASE);
}

static CUresult map_state(struct driver *to)
{
    char message[SIM_MAX_PATH];
    struct stat st;
    if (!to->state)
        to->state = sim_state_map(&to->root, true, &to->fd, message, sizeof(message));
    CU_REQUIRE(to->state && syscall(SYS_fstat, to->fd, &st) == 0, CUDA_ERROR_OPERATING_SYSTEM);
    to->state_device = st.st_dev;
    to->state_inode = st.st_ino;
    return CUDA_SUCCESS;
}

/* What cuInit finds out, once. A failure is found again by the next call: nodes may appear. */
static CUresult start(struct driver *to)
{
    char message[SIM_MAX_PATH];
    if (to->ready)
        return CUDA_SUCCESS;
    if (sim_root_open(&to->root, message, sizeof(message)) != 0 ||
        !sim_root_has_node(&to->root, "/dev/nvidiactl", 195, 255))
        return CUDA_ERROR_NO_DEVICE;
    /* Without the memory manager's node the real driver knows no better name for it. */
    CU_REQUIRE(sim_root_has_node(&to->root, "/dev/nvidia-uvm", to->root.description.uvm_major, 0),
               CUDA_ERROR_UNKNOWN);
    devices_find(to);
    CU_REQUIRE(to->device_count, CUDA_ERROR_NO_DEVICE);
    CU_TRY(map_state(to));
    CU_TRY(mps_start(to));
    to->ready = true;
    return CUDA_SUCCESS;
}

CU_API CUresult cuInit(unsigned int flags)
{
    CU_ARGUMENT(flags == 0);
    pthread_once(&process.once, make_driver);
    CU_REQUIRE(driver(), CUDA_ERROR_OUT_OF_MEMORY);
    CU_REQUIRE(!process.forked, CUDA_ERROR_NOT_INITIALIZED);
    pthread_mutex_lock(&driver()->lock);
    locked_enter(driver());
    CU_RETURN(start(driver()));
}

CUresult api_attach(void)
{
    char message[SIM_MAX_PATH];
    pthread_once(&process.once, make_driver);
    struct driver *to = driver();
    CU_REQUIRE(to && !process.forked, CUDA_ERROR_NOT_INITIALIZED);
    pthread_mutex_lock(&to->lock);
    locked_enter(to);
    CUresult found = CUDA_SUCCESS;
    if (!to->ready)
        found =
            sim_root_open(&to->root, message, sizeof(message)) == 0 ? map_state(to) : CUDA_ERROR_NO_DEVICE;
    if (found != CUDA_SUCCESS)
        api_leave();
    return found;
}

/* Defined where a test simulates time, tests/native/virtual: there, calls take as long as this says. */
extern void sim_clock_spend(uint64_t ns) __attribute__((weak));

enum { CALL_NS = 1000 };

CUresult api_enter(void)
{
    struct driver *to = driver();
    if (sim_clock_spend)
        sim_clock_spend(CALL_NS);
    CU_REQUIRE(to && !process.forked, CUDA_ERROR_NOT_INITIALIZED);
    pthread_mutex_lock(&to->lock);
    CUresult found = to->ready ? mps_look(to) : CUDA_ERROR_NOT_INITIALIZED;
    if (found != CUDA_SUCCESS)
        pthread_mutex_unlock(&to->lock);
    else
        locked_enter(to);
    return found;
}

void api_leave(void)
{
    locked_leave(driver());
    pthread_mutex_unlock(&driver()->lock);
}

/* Asked before cuInit too. Where nothing is simulated, the version that this code is written for. */
CU_API CUresult cuDriverGetVersion(int *version)
{
    struct driver *to = driver();
    CU_ARGUMENT(version);
    *version = 13000;
    if (to && to->ready) {
        *version = (int)(to->root.description.cuda_version.major * 1000 +
                         to->root.description.cuda_version.minor * 10);
        return CUDA_SUCCESS;
    }
    struct sim_root *root = malloc(sizeof(*root));
    char message[SIM_MAX_PATH];
    if (root && sim_root_open(root, message, sizeof(message)) == 0)
        *version =
            (int)(root->description.cuda_version.major * 1000 + root->description.cuda_version.minor * 10);
    free(root);
    return CUDA_SUCCESS;
}
