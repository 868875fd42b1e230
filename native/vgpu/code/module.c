/* Modules: charged for their variables, and for their code where the driver loads it at once. Where it
 * loads code when it is needed, the process's first module stands for that, with what the host has measured. An
 * image that was not understood is charged for what the driver takes, and unloaded if that does not fit. */
#include "module.h"

#include "charge/resident.h"
#include "slice/ledger.h"

#include <sched.h>
#include <stdlib.h>

enum { SEEN = 4096, LOOKS = 100 };

static _Atomic uintptr_t seen[SEEN];

_Atomic uintptr_t *kernel_place(CUfunction function)
{
    uintptr_t handle = (uintptr_t)function;
    return &seen[(handle >> 4 ^ handle >> 16) % SEEN];
}

void kernels_forget(void)
{
    for (int i = 0; i < SEEN; i++)
        atomic_store_explicit(&seen[i], 0, memory_order_relaxed);
}

/* What is free and what is in the books: memory that the container takes or gives back is in both. */
uint64_t measured_now(int position)
{
    size_t left, total;
    struct account_view view;
    bool known = position != NO_POSITION && account_view(position, &view) &&
                 RESIDENT(cuMemGetInfo_v2)(&left, &total) == CUDA_SUCCESS;
    return known ? add_capped(left, view.used) : UINT64_MAX;
}

uint64_t measured_since(int position, uint64_t before)
{
    uint64_t now = measured_now(position);
    /* More than before: another thread has freed memory that is in the books yet. */
    for (int looks = 0; looks < LOOKS && now != UINT64_MAX && now > before; looks++) {
        sched_yield();
        now = measured_now(position);
    }
    return before != UINT64_MAX && now != UINT64_MAX ? subtract_capped(before, now) : UINT64_MAX;
}

static bool loads_code_at_once(void)
{
    int mode = 0;
    return REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS && mode == CU_MODULE_EAGER_LOADING;
}

/* A file's contents, which the driver gets as they were looked at: it would open the path anew, where another file may
 * lie by then. NULL: it cannot be read. */
static char *read_file(const char *path, size_t *size)
{
    struct stat status;
    char *image = NULL;
    int fd = path ? file_open(path, O_RDONLY) : -1;
    if (fd >= 0 && file_status(fd, &status) && S_ISREG(status.st_mode) && status.st_size > 64) {
        /* A byte more than the file, so that text ends. */
        *size = (size_t)status.st_size;
        image = calloc(1, *size + 8);
        if (image && file_read(fd, image, *size, 0) != status.st_size) {
            free(image);
            image = NULL;
        }
    }
    if (fd >= 0)
        file_close(fd);
    return image;
}

/* Up to a chunk's worth of variables fits into what a context has (measured on driver 580). */
uint64_t module_bytes(uint64_t bytes)
{
    return bytes > MIB ? round_capped(bytes, PAGE) : 0;
}

bool module_begin(struct image image, struct loading *loading)
{
    struct vgpu_quota_device device;
    struct item item;
    *loading = (struct loading){.image = image};
    if (!target_current(&loading->to))
        return true;
    if (!image.exact)
        loading->before = measured_now(loading->to.position);
    loading->bytes = module_bytes(image.bytes);
    if (!item_get(ITEM_CODE, (uint64_t)loading->to.position + 1, &item) &&
        account_device(loading->to.position, &device))
        loading->first = round_capped(device.module_overhead, PAGE);
    if (!loading->bytes && !loading->first)
        return true;
    loading->known = charge(loading->to.position, loading->bytes + loading->first);
    return loading->known;
}

/* The driver took more than was known before; false: that does not fit. */
static bool charge_measured(struct loading *loading)
{
    uint64_t taken = measured_since(loading->to.position, loading->before);
    uint64_t known = loading->bytes + loading->first;
    if (taken <= known)
        return true;
    if (!charge(loading->to.position, taken - known))
        return false;
    loading->bytes += taken - known;
    loading->known = true;
    return true;
}

/* A module is in the books even if it bears nothing: its functions are of its context. */
bool module_end(struct loading *loading, uint64_t key, bool loaded, bool library)
{
    bool fits = !loaded || loading->image.exact || !loading->to.context || charge_measured(loading);
    loaded &= fits;
    struct item module = {.kind = ITEM_MODULE,
                          .key = key,
                          .bytes = loading->bytes,
                          .position = (uint8_t)loading->to.position,
                          .context = library ? 0 : loading->to.context};
    struct item first = {.kind = ITEM_CODE,
                         .key = (uint64_t)loading->to.position + 1,
                         .bytes = loading->first,
                         .position = (uint8_t)loading->to.position,
                         .context = loading->to.context};
    if (loaded && !library && loading->to.context)
        item_put(&module);
    if (!loading->known)
        return fits;
    items_lock();
    bool enters = loaded && loading->first && !item_find(ITEM_CODE, first.key) && item_insert(&first);
    items_unlock();
    uint64_t taken = (loaded ? loading->bytes : 0) + (enters ? loading->first : 0);
    account_settle(loading->to.position, loading->bytes + loading->first, taken);
    return fits;
}

#define LOAD(scope, name, image, parameters, call)                                                          \
    scope CUresult name parameters                                                                          \
    {                                                                                                       \
        struct loading loading;                                                                             \
        CUmodule made = NULL, *place = out ? &made : NULL;                                                  \
        if (!module_begin(image, &loading))                                                                 \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        CUresult result = WITH_ROOM(loading.to.position, PAGE, call);                                       \
        if (module_end(&loading, KEY(made), result == CUDA_SUCCESS, false))                                 \
            return HAND_OUT(out, made, result);                                                             \
        REAL(cuModuleUnload)(made);                                                                         \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                    \
    }

struct image module_data(const void *image)
{
    return image ? image_read(image, 0, loads_code_at_once()) : (struct image){0};
}

/* What was not understood may say that it is longer than the file. The driver opens that itself, and what it takes is
 * measured. */
static const struct image unknown = {.exact = false};

LOAD(static, load_read, image, (CUmodule * out, const char *text, struct image image),
     REAL(cuModuleLoadData)(place, text))
LOAD(static, load_path, unknown, (CUmodule * out, const char *path), REAL(cuModuleLoad)(place, path))

CU_API CUresult cuModuleLoad(CUmodule *out, const char *path)
{
    size_t size;
    char *text = read_file(path, &size);
    struct image image = text ? image_read(text, size, loads_code_at_once()) : unknown;
    CUresult result = image.exact ? load_read(out, text, image) : load_path(out, path);
    free(text);
    return result;
}

LOAD(CU_API, cuModuleLoadData, module_data(image), (CUmodule * out, const void *image),
     REAL(cuModuleLoadData)(place, image))
LOAD(CU_API, cuModuleLoadDataEx, module_data(image),
     (CUmodule * out, const void *image, unsigned int count, int *options, void **values),
     REAL(cuModuleLoadDataEx)(place, image, count, options, values))
LOAD(CU_API, cuModuleLoadFatBinary, module_data(image), (CUmodule * out, const void *image),
     REAL(cuModuleLoadFatBinary)(place, image))

/* Out of the books before the driver gives its handle to another. */
CU_API CUresult cuModuleUnload(CUmodule module)
{
    struct item item;
    bool known = item_take(ITEM_MODULE, KEY(module), &item);
    CUresult result = REAL(cuModuleUnload)(module);
    kernels_forget();
    return known ? refund_if(&item, result) : result;
}
