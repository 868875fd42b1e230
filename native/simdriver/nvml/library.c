/* Start, stop, and the table of visible devices. */
#include "library.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/* The one thing of static storage: NVML's interface has no context argument. It stays for the life of the
 * process (the library is linked nodelete), as closing the state's descriptor would cost libcuda its locks. */
static struct {
    pthread_mutex_t lock;
    struct nvml_library *library;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct nvml_library *nvml_library(void)
{
    struct nvml_library *library = __atomic_load_n(&process.library, __ATOMIC_ACQUIRE);
    return library && __atomic_load_n(&library->users, __ATOMIC_RELAXED) ? library : NULL;
}

const struct nvml_device *nvml_checked(nvmlDevice_t handle)
{
    const struct nvml_library *library = nvml_library();
    for (uint32_t i = 0; library && i < library->gpu_count; i++) {
        const struct nvml_gpu *gpu = &library->gpus[i];
        if (handle == &gpu->device)
            return handle;
        for (uint32_t m = 0; m < gpu->mig_count; m++)
            if (handle == &gpu->mig[m])
                return handle;
    }
    return NULL;
}

nvmlReturn_t nvml_copy(const char *text, char *out, unsigned int size)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* Which GPUs and MIG devices this process may see now: a new start sees what appeared or went since. */
static void scan(struct nvml_library *library)
{
    const struct sim_description *description = &library->root.description;
    bool monitor = sim_root_has_mig_monitor(&library->root);
    library->gpu_count = 0;
    for (uint32_t i = 0; i < description->gpu_count; i++) {
        const struct sim_gpu *source = &description->gpus[i];
        if (!sim_root_has_gpu(&library->root, source))
            continue;
        uint32_t index = library->gpu_count++;
        struct nvml_gpu *gpu = &library->gpus[index];
        gpu->device = (struct nvml_device){source, NULL, index, 0, sim_partition_of(i, -1)};
        gpu->mig_count = 0;
        for (uint32_t m = 0; m < source->mig_count; m++) {
            if (!monitor && !sim_root_has_mig(&library->root, source, &source->mig[m]))
                continue;
            uint32_t mig_index = gpu->mig_count++;
            gpu->mig[mig_index] =
                (struct nvml_device){source, &source->mig[m], index, mig_index, sim_partition_of(i, (int)m)};
        }
    }
}

static struct nvml_library *load(void)
{
    char message[SIM_MAX_PATH];
    struct nvml_library *library =
        mmap(NULL, sizeof(*library), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (library == MAP_FAILED)
        return NULL;
    if (sim_root_open(&library->root, message, sizeof(message)) != 0) {
        munmap(library, sizeof(*library));
        return NULL;
    }
    library->state = sim_state_map(&library->root, false, &library->state_fd, message, sizeof(message));
    return library;
}

static nvmlReturn_t start(void)
{
    if (!process.library)
        __atomic_store_n(&process.library, load(), __ATOMIC_RELEASE);
    struct nvml_library *library = process.library;
    if (!library || !sim_root_has_node(&library->root, "/dev/nvidiactl", 195, 255))
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (library->users == 0)
        scan(library);
    __atomic_store_n(&library->users, library->users + 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags; /* 1: no GPUs is fine, 2: do not attach: neither makes a difference here */
    pthread_mutex_lock(&process.lock);
    nvmlReturn_t result = start();
    pthread_mutex_unlock(&process.lock);
    return result;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&process.lock);
    if (process.library && process.library->users) {
        __atomic_store_n(&process.library->users, process.library->users - 1, __ATOMIC_RELAXED);
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&process.lock);
    return result;
}
