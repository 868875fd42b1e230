/* Libraries: modules that the driver loads in a context when they are first used there, by whichever way. */
#include "module.h"

#include <stdlib.h>

/* While a library goes, none comes, which the driver could give its handle. */
#define TURN offsetof(struct process, libraries)

static bool is_gone(CUlibrary library)
{
    struct item item;
    return item_get(ITEM_LIBRARY, KEY(library), &item) && item.count;
}

static uint64_t loaded_key(CUlibrary library, uint64_t context)
{
    return KEY(library) * UINT64_C(0x9e3779b97f4a7c15) ^ context;
}

static bool is_loaded_of(const struct item *item, uint64_t library)
{
    return item->kind == ITEM_LOADED && item->other == library;
}

static bool is_of(const struct item *item, uint64_t library)
{
    return (item->kind == ITEM_KERNEL && item->other == library) || is_loaded_of(item, library);
}

/* Out of the books, in all contexts. */
static void forget(uint64_t library, bool (*what)(const struct item *, uint64_t))
{
    struct item item;
    for (uint64_t slot = 0; item_take_next(&slot, what, library, &item);)
        refund(&item); /* a kernel bears nothing */
}

/* It took more than fits: there is no way to take it back but this, and its kernels are refused from now on. */
static bool unload(CUlibrary library)
{
    ITEM_SET(ITEM_LIBRARY, KEY(library), count, 1);
    forget(KEY(library), is_loaded_of);
    REAL(cuLibraryUnload)(library);
    return false;
}

/* Has the driver load it now, and charges what that took. The context is current. */
static bool measure(CUlibrary library, const struct target *to, struct item *loaded)
{
    CUmodule module;
    uint64_t before = measured_now(to->position);
    if (REAL(cuLibraryGetModule)(&module, library) != CUDA_SUCCESS)
        return true; /* and will say so to whoever uses it */
    uint64_t taken = measured_since(to->position, before);
    if (taken <= loaded->bytes)
        return true;
    if (!charge(to->position, taken - loaded->bytes))
        return false;
    account_commit(to->position, taken - loaded->bytes);
    loaded->bytes = taken;
    return true;
}

static bool enter(CUlibrary library, const struct item *item, const struct target *to)
{
    struct item loaded = {.kind = ITEM_LOADED,
                          .key = loaded_key(library, to->context),
                          .context = to->context,
                          .other = item->key,
                          .bytes = item->bytes,
                          .position = (uint8_t)to->position};
    struct item known;
    if (item_get(ITEM_LOADED, loaded.key, &known))
        return true;
    if (!charge(to->position, loaded.bytes))
        return false;
    account_commit(to->position, loaded.bytes);
    bool fits =
        item->small || IN_CONTEXT((CUcontext)(uintptr_t)to->context, measure(library, to, &loaded), false);
    items_lock();
    bool twice = fits && item_find(ITEM_LOADED, loaded.key); /* by another thread */
    if (fits && !twice)
        item_insert(&loaded);
    items_unlock();
    if (!fits || twice)
        account_release(to->position, loaded.bytes);
    return fits || unload(library);
}

static bool allows(CUlibrary library, const struct target *to)
{
    struct item item;
    if (!item_get(ITEM_LIBRARY, KEY(library), &item))
        return true;
    return !item.count && enter(library, &item, to);
}

/* Without a current context nothing is loaded, and the launch is what will be asked about. */
static bool allows_here(CUlibrary library)
{
    struct target to;
    return target_current(&to) ? allows(library, &to) : !is_gone(library);
}

bool library_allows_kernel(CUfunction kernel, const struct target *to, bool *lasting)
{
    struct item item;
    *lasting = true;
    if (!item_get(ITEM_KERNEL, KEY(kernel), &item))
        return true;
    *lasting = atomic_load_explicit(&process()->contexts, memory_order_relaxed) <= 1;
    return allows((CUlibrary)(uintptr_t)item.other, to);
}

/* One that bears nothing needs no books. */
static CUresult entered(CUlibrary library, struct image image)
{
    struct item item = {
        .kind = ITEM_LIBRARY, .key = KEY(library), .bytes = module_bytes(image.bytes), .small = image.exact};
    if ((image.exact && !item.bytes) || item_put(&item))
        return CUDA_SUCCESS;
    REAL(cuLibraryUnload)(library);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static const struct image nothing = {.exact = true};

/* Whatever lies at a path when the driver opens it: measured where it is first used. */
static const struct image unknown = {.exact = false};

enum { PARKED = 8 };

/* Libraries whose handles name one that was taken from the program, which has still to unload it. */
struct parked {
    CUlibrary libraries[PARKED];
    unsigned int count;
};

/* True: the driver gave the handle of such a one again, and is to load once more while this one has it. */
static bool park(CUlibrary library, struct parked *parked)
{
    if (!is_gone(library) || parked->count == PARKED)
        return false;
    parked->libraries[parked->count++] = library;
    return true;
}

static CUresult unpark(const struct parked *parked, CUlibrary library, struct image image)
{
    for (unsigned int i = 0; i < parked->count; i++)
        REAL(cuLibraryUnload)(parked->libraries[i]);
    if (!is_gone(library))
        return entered(library, image);
    REAL(cuLibraryUnload)(library);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The first module of the process may be a library. */
#define LIBRARY(name, contents, type, what)                                                                 \
    CU_API CUresult name(CUlibrary *out, type what, int *options, void **values, unsigned int count,        \
                         int *library_options, void **library_values, unsigned int library_count)           \
    {                                                                                                       \
        struct loading loading;                                                                             \
        struct parked parked = {.count = 0};                                                                \
        CUlibrary library = NULL;                                                                           \
        CUresult result;                                                                                    \
        if (!module_begin(nothing, &loading))                                                               \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                \
        do                                                                                                  \
            result = IN_TURN(TURN, REAL(name)(out ? &library : NULL, what, options, values, count,          \
                                              library_options, library_values, library_count));             \
        while (result == CUDA_SUCCESS && park(library, &parked));                                           \
        module_end(&loading, 0, result == CUDA_SUCCESS, true);                                              \
        if (result == CUDA_SUCCESS)                                                                         \
            result = unpark(&parked, library, contents);                                                    \
        return HAND_OUT(out, library, result);                                                              \
    }

LIBRARY(cuLibraryLoadData, module_data(data), const void *, data)
LIBRARY(cuLibraryLoadFromFile, unknown, const char *, path)

static CUresult unloaded(CUlibrary library)
{
    struct item item;
    bool known = item_take(ITEM_LIBRARY, KEY(library), &item);
    CUresult result = known && item.count ? CUDA_SUCCESS : REAL(cuLibraryUnload)(library);
    kernels_forget();
    if (known && result == CUDA_SUCCESS)
        forget(KEY(library), is_of);
    else if (known)
        item_put(&item);
    return result;
}

WRAP(cuLibraryUnload, (CUlibrary library), IN_TURN(TURN, unloaded(library)))

/* False: of a library that bears something, and there is no room in the books. A kernel of an earlier library may have had this
 * handle: the driver gives them again. */
static bool enter_kernel(CUkernel kernel, CUlibrary library)
{
    struct item of, item = {.kind = ITEM_KERNEL, .key = KEY(kernel), .other = KEY(library)};
    bool bears = item_get(ITEM_LIBRARY, item.other, &of);
    items_lock();
    struct item *earlier = item_find(ITEM_KERNEL, item.key);
    if (earlier)
        item_remove(earlier);
    bool done = !bears || item_insert(&item);
    items_unlock();
    return done;
}

#define USE(name, parameters, arguments)                                                                    \
    WRAP(name, parameters, allows_here(library) ? REAL(name) arguments : CUDA_ERROR_OUT_OF_MEMORY)

USE(cuLibraryGetModule, (CUmodule * out, CUlibrary library), (out, library))
USE(cuLibraryGetGlobal, (CUdeviceptr * out, size_t *size, CUlibrary library, const char *name),
    (out, size, library, name))
USE(cuLibraryGetManaged, (CUdeviceptr * out, size_t *size, CUlibrary library, const char *name),
    (out, size, library, name))
USE(cuLibraryGetUnifiedFunction, (void **out, CUlibrary library, const char *name), (out, library, name))

CU_API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name)
{
    if (!allows_here(library))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUkernel found = NULL;
    CUresult result = REAL(cuLibraryGetKernel)(out ? &found : NULL, library, name);
    if (result == CUDA_SUCCESS && !enter_kernel(found, library))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return HAND_OUT(out, found, result);
}

/* All of them are in the books before the program has any: from a list of the shim's own. */
CU_API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int room, CUlibrary library)
{
    unsigned int count = 0;
    if (!allows_here(library))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuLibraryGetKernelCount)(&count, library);
    CUkernel *all = calloc(count + 1, sizeof(CUkernel));
    if (result == CUDA_SUCCESS)
        result = all ? REAL(cuLibraryEnumerateKernels)(all, count, library) : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)
        if (!enter_kernel(all[i], library))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    free(all);
    return result == CUDA_SUCCESS ? REAL(cuLibraryEnumerateKernels)(out, room, library) : result;
}

CU_API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    struct target to;
    bool lasting;
    if (target_current(&to) && !library_allows_kernel((CUfunction)(void *)kernel, &to, &lasting))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return REAL(cuKernelGetFunction)(out, kernel);
}
