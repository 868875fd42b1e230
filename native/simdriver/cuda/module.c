/* Modules belong to a context; libraries to none. */
#include "module.h"

#include "engine.h"
#include "memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 30 };

struct function *function_of(CUfunction handle)
{
    return handle_is(handle, KIND_FUNCTION) ? handle : NULL;
}

struct function *module_add_function(struct module *module, const char *name, size_t length)
{
    struct function *function = handle_new(KIND_FUNCTION, sizeof(*function));
    if (function)
        function->name = strndup(name, length);
    if (!function || !function->name) {
        handle_free(function);
        return NULL;
    }
    function->module = module;
    function->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = 1024;
    function->attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
    function->attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = 90;
    function->attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = 90;
    function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 48 << 10;
    kernel_describe(function);
    function->next = module->functions;
    module->functions = function;
    return function;
}

CUresult module_add_variable(struct module *module, const char *name, size_t length, uint64_t size)
{
    struct variable *variable = calloc(1, sizeof(*variable));
    CU_REQUIRE(variable, CUDA_ERROR_OUT_OF_MEMORY);
    variable->name = strndup(name, length);
    variable->size = size ? size : 1;
    variable->next = module->variables;
    module->variables = variable;
    return variable->name ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Variables and code take device memory as soon as a module is in a context. */
CUresult module_place_variables(struct module *module, struct context *context)
{
    if (module->charged && !module->charged_on) {
        CU_TRY(ledger_charge(context->device, module->charged));
        module->charged_on = context->device;
    }
    for (struct variable *variable = module->variables; variable; variable = variable->next) {
        if (variable->memory)
            continue;
        CU_TRY(memory_allocate(context, variable->size, MEMORY_GLOBAL, &variable->memory));
        if (!module->context)
            variable->memory->context = NULL; /* of a library: outlives the context */
    }
    return CUDA_SUCCESS;
}

void module_unload(struct module *module)
{
    for (struct function *function; (function = module->functions) != NULL;) {
        module->functions = function->next;
        free(function->name);
        handle_free(function);
    }
    for (struct variable *variable; (variable = module->variables) != NULL;) {
        module->variables = variable->next;
        if (variable->memory)
            memory_release(variable->memory);
        free(variable->name);
        free(variable);
    }
    if (module->charged_on)
        ledger_refund(module->charged_on, module->charged);
    handle_free(module);
}

void modules_unload(struct context *context)
{
    while (context->modules) {
        struct module *module = context->modules;
        context->modules = module->next;
        module_unload(module);
    }
}

static CUresult load(CUmodule *out, const void *image)
{
    CU_CONTEXT(context);
    CU_ARGUMENT(out && image);
    struct module *module = handle_new(KIND_MODULE, sizeof(*module));
    CU_REQUIRE(module, CUDA_ERROR_OUT_OF_MEMORY);
    module->context = context;
    CUresult result = image_read(module, image);
    if (result == CUDA_SUCCESS)
        result = module_place_variables(module, context);
    if (result != CUDA_SUCCESS) {
        module_unload(module);
        return result;
    }
    module->next = context->modules;
    context->modules = module;
    *out = module;
    return CUDA_SUCCESS;
}

CU_EXPORT(cuModuleLoadData, (CUmodule * out, const void *image), load(out, image))

CU_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, int *options,
                                   void **values)
{
    CU_ARGUMENT(count == 0 || (options && values));
    CU_CALL(load(out, image));
}

CU_EXPORT(cuModuleLoadFatBinary, (CUmodule * out, const void *image), load(out, image))

CUresult file_read(const char *path, char **out)
{
    CU_ARGUMENT(path && out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CU_REQUIRE(fd >= 0, CUDA_ERROR_FILE_NOT_FOUND);
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = size >= 0 && size < MAX_FILE ? calloc(1, (size_t)size + sizeof(uint64_t)) : NULL;
    ssize_t got = text ? pread(fd, text, (size_t)size, 0) : -1;
    close(fd);
    if (got != size) {
        free(text);
        return text ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = text;
    return CUDA_SUCCESS;
}

static CUresult load_file(CUmodule *out, const char *path)
{
    char *text;
    CU_TRY(file_read(path, &text));
    CUresult result = load(out, text);
    free(text);
    return result;
}

CU_EXPORT(cuModuleLoad, (CUmodule * out, const char *path), load_file(out, path))

static CUresult unload(CUmodule handle)
{
    CU_CONTEXT(current);
    CU_REQUIRE(handle_is(handle, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    struct context *context = handle->context;
    engine_wait_context(context);
    CU_REQUIRE(handle_is(handle, KIND_MODULE), CUDA_ERROR_INVALID_HANDLE);
    for (struct module **at = &context->modules; *at; at = &(*at)->next)
        if (*at == handle) {
            *at = handle->next;
            break;
        }
    module_unload(handle);
    return CUDA_SUCCESS;
}

CU_EXPORT(cuModuleUnload, (CUmodule module), unload(module))

/* What is not text may have any function: it is not looked into. */
CUresult module_function(struct module *module, const char *name, struct function **out)
{
    CU_ARGUMENT(name && out && *name && strlen(name) < MAX_NAME);
    struct function *function = module->functions;
    while (function && strcmp(function->name, name) != 0)
        function = function->next;
    if (!function) {
        CU_REQUIRE(!module->is_text, CUDA_ERROR_NOT_FOUND);
        function = module_add_function(module, name, strlen(name));
        CU_REQUIRE(function, CUDA_ERROR_OUT_OF_MEMORY);
    }
    *out = function;
    return CUDA_SUCCESS;
}

/* A library is taken for the module that cuLibraryGetModule says it is. */
static bool is_module(CUmodule handle)
{
    return handle_is(handle, KIND_MODULE) || handle_is(handle, KIND_LIBRARY);
}

static CUresult get_function(CUfunction *out, CUmodule module, const char *name)
{
    CU_CONTEXT(context);
    CU_REQUIRE(is_module(module), CUDA_ERROR_INVALID_HANDLE);
    return module_function(module, name, out);
}

CU_EXPORT(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name),
          get_function(out, module, name))

static CUresult get_global(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    CU_CONTEXT(context);
    CU_REQUIRE(is_module(module), CUDA_ERROR_INVALID_HANDLE);
    CU_ARGUMENT(name);
    for (const struct variable *variable = module->variables; variable; variable = variable->next) {
        if (strcmp(variable->name, name) != 0 || !variable->memory)
            continue;
        if (address)
            *address = variable->memory->range.base;
        if (size)
            *size = variable->size;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CU_EXPORT(cuModuleGetGlobal_v2, (CUdeviceptr * address, size_t *size, CUmodule module, const char *name),
          get_global(address, size, module, name))

CU_API CUresult cuModuleGetLoadingMode(int *mode)
{
    CU_ARGUMENT(mode);
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

CUresult module_count(const struct module *module, unsigned int *count)
{
    CU_ARGUMENT(count);
    *count = 0;
    for (const struct function *function = module->functions; function; function = function->next)
        ++*count;
    return CUDA_SUCCESS;
}

CUresult module_list(const struct module *module, CUfunction *out, unsigned int room)
{
    struct function *function = module->functions;
    CU_ARGUMENT(out);
    for (unsigned int i = 0; i < room && function; i++, function = function->next)
        out[i] = function;
    return CUDA_SUCCESS;
}

CU_API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    CU_ENTER();
    CU_RETURN(is_module(module) ? module_count(module, count) : CUDA_ERROR_INVALID_HANDLE);
}

CU_API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned int room, CUmodule module)
{
    CU_ENTER();
    CU_RETURN(is_module(module) ? module_list(module, out, room) : CUDA_ERROR_INVALID_HANDLE);
}
