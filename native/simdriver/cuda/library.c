/* Libraries: modules without a context, whose kernels can be launched in any. And the linker. */
#include "engine.h"
#include "memory.h"
#include "module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static CUresult load(CUlibrary *out, const void *image)
{
    CU_ARGUMENT(out && image);
    struct module *library = handle_new(KIND_LIBRARY, sizeof(*library));
    CU_REQUIRE(library, CUDA_ERROR_OUT_OF_MEMORY);
    CUresult result = image_read(library, image);
    if (result != CUDA_SUCCESS)
        module_unload(library);
    else
        *out = library;
    return result;
}

CU_API CUresult cuLibraryLoadData(CUlibrary *out, const void *image, int *options, void **values,
                                  unsigned int count, int *library_options, void **library_values,
                                  unsigned int library_count)
{
    CU_ARGUMENT((count == 0 || (options && values)) && (library_count == 0 || library_options));
    (void)library_values;
    CU_CALL(load(out, image));
}

static CUresult load_file(CUlibrary *out, const char *path)
{
    char *text;
    CU_TRY(file_read(path, &text));
    CUresult result = load(out, text);
    free(text);
    return result;
}

CU_API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *options, void **values,
                                      unsigned int count, int *library_options, void **library_values,
                                      unsigned int library_count)
{
    CU_ARGUMENT((count == 0 || (options && values)) && (library_count == 0 || library_options));
    (void)library_values;
    CU_CALL(load_file(out, path));
}

static CUresult unload(CUlibrary library)
{
    CU_REQUIRE(handle_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    for (uint32_t i = 0; i < driver()->device_count; i++)
        engine_wait_device(&driver()->devices[i]);
    CU_REQUIRE(handle_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    module_unload(library);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuLibraryUnload, (CUlibrary library), unload(library))

static CUresult get_kernel(CUkernel *out, CUlibrary library, const char *name)
{
    CU_REQUIRE(handle_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    return module_function(library, name, out);
}

CU_EXPORT(cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name),
          get_kernel(out, library, name))

CU_API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    CU_ENTER();
    CU_RETURN(handle_is(library, KIND_LIBRARY) ? module_count(library, count) : CUDA_ERROR_INVALID_HANDLE);
}

CU_API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int room, CUlibrary library)
{
    CU_ENTER();
    CU_RETURN(handle_is(library, KIND_LIBRARY) ? module_list(library, out, room)
                                               : CUDA_ERROR_INVALID_HANDLE);
}

/* Placed on first use in a context. */
static CUresult get_global(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name)
{
    CU_CONTEXT(context);
    CU_REQUIRE(handle_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(name);
    CU_TRY(module_place_variables(library, context));
    for (const struct variable *variable = library->variables; variable; variable = variable->next)
        if (strcmp(variable->name, name) == 0) {
            if (address)
                *address = variable->memory->range.base;
            if (size)
                *size = variable->size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CU_EXPORT(cuLibraryGetGlobal, (CUdeviceptr * address, size_t *size, CUlibrary library, const char *name),
          get_global(address, size, library, name))

static CUresult get_module(CUmodule *out, CUlibrary library)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out);
    CU_REQUIRE(handle_is(library, KIND_LIBRARY), CUDA_ERROR_INVALID_HANDLE);
    CU_TRY(module_place_variables(library, context));
    *out = library;
    return CUDA_SUCCESS;
}

/* The library itself serves as its module: whatever takes a module's functions takes it. */
CU_EXPORT(cuLibraryGetModule, (CUmodule * out, CUlibrary library), get_module(out, library))

static CUresult kernel_function(CUfunction *out, CUkernel kernel)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out);
    CU_REQUIRE(function_of(kernel), CUDA_ERROR_INVALID_HANDLE);
    *out = kernel;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuKernelGetFunction, (CUfunction * out, CUkernel kernel), kernel_function(out, kernel))

/* Inputs one behind the other; PTX of several files reads as one. */
struct link_state {
    char *image;
    size_t size;
    bool complete;
};

static CUresult link_create(CUlinkState *out)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out);
    *out = handle_new(KIND_LINK, sizeof(**out));
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *out)
{
    CU_ARGUMENT(count == 0 || (options && values));
    CU_CALL(link_create(out));
}

CU_API CUresult cuLinkCreate(unsigned int count, int *options, void **values, CUlinkState *out)
{
    return cuLinkCreate_v2(count, options, values, out);
}

static CUresult link_add(CUlinkState state, const void *data, size_t size)
{
    CU_REQUIRE(handle_is(state, KIND_LINK), CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(data && size && !state->complete);
    char *longer = realloc(state->image, state->size + size + 2);
    CU_REQUIRE(longer, CUDA_ERROR_OUT_OF_MEMORY);
    memcpy(longer + state->size, data, size);
    state->image = longer;
    state->size += size;
    while (isprint((unsigned char)longer[0]) && longer[state->size - 1] == '\0')
        state->size--; /* the zero that ends a text would hide the next */
    longer[state->size++] = '\n';
    longer[state->size] = '\0';
    return CUDA_SUCCESS;
}

CU_API CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t size, const char *name,
                                 unsigned int count, int *options, void **values)
{
    (void)name, (void)options, (void)values, (void)count;
    CU_ARGUMENT(type >= 0 && type <= 6);
    CU_CALL(link_add(state, data, size));
}

CU_API CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t size, const char *name,
                              unsigned int count, int *options, void **values)
{
    return cuLinkAddData_v2(state, type, data, size, name, count, options, values);
}

static CUresult link_add_file(CUlinkState state, const char *path)
{
    char *text;
    CU_TRY(file_read(path, &text));
    CUresult result = link_add(state, text, strlen(text));
    free(text);
    return result;
}

CU_API CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned int count,
                                 int *options, void **values)
{
    (void)options, (void)values, (void)count;
    CU_ARGUMENT(type >= 0 && type <= 6);
    CU_CALL(link_add_file(state, path));
}

CU_API CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned int count,
                              int *options, void **values)
{
    return cuLinkAddFile_v2(state, type, path, count, options, values);
}

static CUresult link_complete(CUlinkState state, void **image, size_t *size)
{
    CU_REQUIRE(handle_is(state, KIND_LINK), CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(image && state->image);
    state->complete = true;
    *image = state->image;
    if (size)
        *size = state->size;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuLinkComplete, (CUlinkState state, void **image, size_t *size), link_complete(state, image, size))

static CUresult link_destroy(CUlinkState state)
{
    CU_REQUIRE(handle_is(state, KIND_LINK), CUDA_ERROR_INVALID_HANDLE);
    free(state->image);
    handle_free(state);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuLinkDestroy, (CUlinkState state), link_destroy(state))
