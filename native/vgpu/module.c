/* Modules and libraries: charged for their variables, and for their code where the driver loads it at once. Where it
 * loads code when it is needed, the process's first module stands for that, with what the host has measured. */
#include "charge.h"
#include "image.h"
#include "local.h"

#include <stdlib.h>

static bool loads_code_at_once(void)
{
    int mode = 0;
    return REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS && mode == CU_LOADING_EAGER;
}

/* The estimate for a file; a file that cannot be read is the driver's to refuse. */
static uint64_t file_bytes(const char *path)
{
    struct stat status;
    uint64_t bytes = 0;
    int fd = path ? file_open(path, O_RDONLY) : -1;
    if (fd >= 0 && file_status(fd, &status) && S_ISREG(status.st_mode) && status.st_size > 64) {
        /* A byte more than the file, so that text ends. */
        char *image = malloc((size_t)status.st_size + 8);
        ssize_t got = image ? file_read(fd, image, (size_t)status.st_size, 0) : -1;
        if (got == status.st_size) {
            image[got] = '\0';
            bytes = image_bytes(image, (size_t)got, loads_code_at_once());
        }
        free(image);
    }
    if (fd >= 0)
        file_close(fd);
    return bytes;
}

/* Up to a chunk's worth of variables fits into what a context has (measured on driver 580). */
static uint64_t charged_for(uint64_t bytes)
{
    return bytes > MIB ? round_capped(bytes, PAGE) : 0;
}

struct loading {
    struct target to;
    uint64_t bytes; /* of the module itself */
    uint64_t first; /* of the process's first */
    bool known;
};

static bool begin(uint64_t bytes, struct loading *loading)
{
    struct vgpu_quota_device device;
    struct item item;
    *loading = (struct loading){0};
    if (!target_current(&loading->to))
        return true;
    loading->bytes = charged_for(bytes);
    if (!item_get(ITEM_CODE, (uint64_t)loading->to.position + 1, &item) &&
        account_device(loading->to.position, &device))
        loading->first = round_capped(device.module_overhead, PAGE);
    if (!loading->bytes && !loading->first)
        return true;
    loading->known = charge(loading->to.position, loading->bytes + loading->first);
    return loading->known;
}

/* A module is in the books even if it bears nothing: its functions are of its context. */
static void end(const struct loading *loading, uint64_t key, bool loaded, bool library)
{
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
        return;
    items_lock();
    bool enters = loaded && loading->first && !item_find(ITEM_CODE, first.key) && item_insert(&first);
    items_unlock();
    uint64_t taken = (loaded ? loading->bytes : 0) + (enters ? loading->first : 0);
    if (taken)
        account_commit(loading->to.position, taken);
    if (loading->bytes + loading->first > taken)
        account_withdraw(loading->to.position, loading->bytes + loading->first - taken);
}

#define LOAD(name, bytes, parameters, arguments)                                                            \
    CU_API CUresult name parameters                                                                         \
    {                                                                                                       \
        struct loading loading;                                                                             \
        if (!begin(bytes, &loading))                                                                        \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        CUresult result = REAL(name) arguments;                                                             \
        bool loaded = result == CUDA_SUCCESS;                                                               \
        end(&loading, loaded ? (uint64_t)(uintptr_t)*out : 0, loaded, false);                               \
        return result;                                                                                      \
    }

static uint64_t data_bytes(const void *image)
{
    return image ? image_bytes(image, 0, loads_code_at_once()) : 0;
}

LOAD(cuModuleLoad, file_bytes(path), (CUmodule * out, const char *path), (out, path))
LOAD(cuModuleLoadData, data_bytes(image), (CUmodule * out, const void *image), (out, image))
LOAD(cuModuleLoadDataEx, data_bytes(image),
     (CUmodule * out, const void *image, unsigned int count, int *options, void **values),
     (out, image, count, options, values))
LOAD(cuModuleLoadFatBinary, data_bytes(image), (CUmodule * out, const void *image), (out, image))

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

/* A library gets to a device with its first use there: `other` says by a bit which devices bear it. */
static void enter_library(CUlibrary library, uint64_t bytes)
{
    struct item item = {
        .kind = ITEM_LIBRARY, .key = (uint64_t)(uintptr_t)library, .bytes = charged_for(bytes)};
    if (item.bytes)
        item_put(&item);
}

static bool library_allows(CUlibrary library)
{
    struct item item;
    struct target to;
    uint64_t key = (uint64_t)(uintptr_t)library;
    if (!item_get(ITEM_LIBRARY, key, &item) || !target_current(&to))
        return true;
    if (to.position != NO_POSITION && item.other >> to.position & 1)
        return true;
    if (!charge(to.position, item.bytes))
        return false;
    items_lock();
    struct item *now = item_find(ITEM_LIBRARY, key);
    bool enters = now && !(now->other >> to.position & 1);
    if (enters)
        now->other |= UINT64_C(1) << to.position;
    items_unlock();
    if (enters)
        account_commit(to.position, item.bytes);
    else
        account_withdraw(to.position, item.bytes);
    return true;
}

static CUresult load_library(const CUlibrary *out, uint64_t bytes, CUresult result)
{
    if (result == CUDA_SUCCESS)
        enter_library(*out, bytes);
    return result;
}

/* The first module of the process may be a library. */
#define LIBRARY(name, bytes, type, what)                                                                    \
    CU_API CUresult name(CUlibrary *out, type what, int *options, void **values, unsigned int count,        \
                         int *library_options, void **library_values, unsigned int library_count)           \
    {                                                                                                       \
        struct loading loading;                                                                             \
        if (!begin(0, &loading))                                                                            \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        CUresult result = load_library(                                                                     \
            out, bytes,                                                                                     \
            REAL(name)(out, what, options, values, count, library_options, library_values, library_count)); \
        end(&loading, 0, result == CUDA_SUCCESS, true);                                                     \
        return result;                                                                                      \
    }

LIBRARY(cuLibraryLoadData, data_bytes(image), const void *, image)
LIBRARY(cuLibraryLoadFromFile, file_bytes(path), const char *, path)

CU_API CUresult cuLibraryUnload(CUlibrary library)
{
    struct item item;
    bool known = item_take(ITEM_LIBRARY, (uint64_t)(uintptr_t)library, &item);
    CUresult result = REAL(cuLibraryUnload)(library);
    local_forget();
    if (known && result != CUDA_SUCCESS)
        item_put(&item);
    if (!known || result != CUDA_SUCCESS)
        return result;
    for (int position = 0; position < VGPU_DEVICES; position++)
        if (item.other >> position & 1)
            account_release(position, item.bytes);
    return result;
}

CU_API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library)
{
    return library_allows(library) ? REAL(cuLibraryGetModule)(out, library) : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *size, CUlibrary library, const char *name)
{
    return library_allows(library) ? REAL(cuLibraryGetGlobal)(out, size, library, name)
                                   : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A kernel is launched without its library being named: one of these comes before. */
CU_API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
    return library_allows(library) ? REAL(cuLibraryGetKernel)(out, library, name) : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int room, CUlibrary library)
{
    return library_allows(library) ? REAL(cuLibraryEnumerateKernels)(out, room, library)
                                   : CUDA_ERROR_OUT_OF_MEMORY;
}
