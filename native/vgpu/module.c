/* Modules: charged for their variables, and for their code where the driver loads it at once. Where it
 * loads code when it is needed, the process's first module stands for that, with what the host has measured. An
 * image that was not understood is charged for what the driver takes, and unloaded if that does not fit. */
#include "module.h"

#include "local.h"

#include <stdlib.h>

static bool loads_code_at_once(void)
{
    int mode = 0;
    return REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS && mode == CU_LOADING_EAGER;
}

/* The estimate for a file; a file that cannot be read is the driver's to refuse. */
struct image module_file(const char *path)
{
    struct stat status;
    struct image found = {0};
    int fd = path ? file_open(path, O_RDONLY) : -1;
    if (fd >= 0 && file_status(fd, &status) && S_ISREG(status.st_mode) && status.st_size > 64) {
        /* A byte more than the file, so that text ends. */
        char *image = malloc((size_t)status.st_size + 8);
        ssize_t got = image ? file_read(fd, image, (size_t)status.st_size, 0) : -1;
        if (got == status.st_size) {
            image[got] = '\0';
            found = image_read(image, (size_t)got, loads_code_at_once());
        }
        free(image);
    }
    if (fd >= 0)
        file_close(fd);
    return found;
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
    uint64_t taken = measured_since(loading->to.position, &loading->before);
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
    if (taken)
        account_commit(loading->to.position, taken);
    if (loading->bytes + loading->first > taken)
        account_withdraw(loading->to.position, loading->bytes + loading->first - taken);
    return fits;
}

#define LOAD(name, image, parameters, arguments)                                                            \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        struct loading loading;                                                                             \
        if (!module_begin(image, &loading))                                                                 \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        CUresult result = REAL(name) arguments;                                                             \
        bool loaded = result == CUDA_SUCCESS;                                                               \
        if (module_end(&loading, loaded ? (uint64_t)(uintptr_t)*out : 0, loaded, false))                    \
            return result;                                                                                  \
        REAL(cuModuleUnload)(*out);                                                                         \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                    \
    }

struct image module_data(const void *image)
{
    return image ? image_read(image, 0, loads_code_at_once()) : (struct image){0};
}

LOAD(cuModuleLoad, module_file(path), (CUmodule * out, const char *path), (out, path))
LOAD(cuModuleLoadData, module_data(image), (CUmodule * out, const void *image), (out, image))
LOAD(cuModuleLoadDataEx, module_data(image),
     (CUmodule * out, const void *image, unsigned int count, int *options, void **values),
     (out, image, count, options, values))
LOAD(cuModuleLoadFatBinary, module_data(image), (CUmodule * out, const void *image), (out, image))

/* Out of the books before the driver gives its handle to another. */
CU_API CUresult cuModuleUnload(CUmodule module)
{
    struct item item;
    bool known = item_take(ITEM_MODULE, (uint64_t)(uintptr_t)module, &item);
    CUresult result = REAL(cuModuleUnload)(module);
    local_forget();
    if (known && result == CUDA_SUCCESS)
        refund(&item);
    else if (known)
        item_put(&item);
    return result;
}
