/* What kernels do, by name. A simulated GPU has no instructions: it knows some kernels, and how long others take.
 *
 *   sim_spin_<N>us, ..._<N>ms   anything with such a part in its name takes that long
 *   ..._local<N>                needs N bytes of local memory a thread
 *   sim_spin_for(ns)            takes as long as its argument says
 *   sim_wait_for(word, value)   ends when the 32-bit word has the value
 *   vector_add(a, b, c, n)      c[i] = a[i] + b[i], floats
 *   fill_u32(out, value, n)     out[i] = value
 *   sim_set_condition(handle, value)   sets what conditional nodes of a graph look at
 *   sim_count_down(word, handle)       takes 1 from the 32-bit word; the condition is whether anything is left
 *   any other                   takes 10 microseconds and computes nothing */
#include "memory.h"
#include "module.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_NS = 10000, LAUNCH_NS = 2000, BYTES_PER_NS = 2000 };

#define ARGUMENT(type, name, offset)                                                                        \
    type name;                                                                                              \
    memcpy(&name, arguments + (offset), sizeof(name))

static uint64_t by_argument(const char *arguments)
{
    ARGUMENT(uint64_t, ns, 0);
    return ns;
}

static uint64_t no_time(const char *arguments)
{
    (void)arguments;
    return 0;
}

static uint64_t add_time(const char *arguments)
{
    ARGUMENT(int32_t, count, 24);
    return LAUNCH_NS + (count > 0 ? (uint64_t)count * 12 / BYTES_PER_NS : 0);
}

static bool add_fits(const char *arguments)
{
    ARGUMENT(int32_t, count, 24);
    for (size_t i = 0; count > 0 && i < 3; i++) {
        ARGUMENT(uint64_t, address, i * 8);
        if (memory_touch(address, (uint64_t)count * sizeof(float), i == 2) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

static void add_run(const char *arguments)
{
    ARGUMENT(const float *, a, 0);
    ARGUMENT(const float *, b, 8);
    ARGUMENT(float *, c, 16);
    ARGUMENT(int32_t, count, 24);
    for (int32_t i = 0; i < count; i++)
        c[i] = a[i] + b[i];
}

static uint64_t fill_time(const char *arguments)
{
    ARGUMENT(uint64_t, count, 16);
    return LAUNCH_NS + count / (BYTES_PER_NS / 4);
}

static bool fill_fits(const char *arguments)
{
    ARGUMENT(uint64_t, address, 0);
    ARGUMENT(uint64_t, count, 16);
    return count <= UINT64_MAX / 4 && memory_touch(address, count * 4, true) == CUDA_SUCCESS;
}

static void fill_run(const char *arguments)
{
    ARGUMENT(uint32_t *, out, 0);
    ARGUMENT(uint32_t, value, 8);
    ARGUMENT(uint64_t, count, 16);
    for (uint64_t i = 0; i < count; i++)
        __atomic_store_n(&out[i], value, __ATOMIC_RELEASE);
}

static bool wait_fits(const char *arguments)
{
    ARGUMENT(uint64_t, address, 0);
    return address % 4 == 0 && memory_touch(address, 4, false) == CUDA_SUCCESS;
}

static bool wait_ready(struct op *op)
{
    const struct kernel_call *call = op_data(op);
    const char *arguments = call->arguments;
    ARGUMENT(const uint32_t *, word, 0);
    ARGUMENT(uint32_t, value, 8);
    return call->bad_address || __atomic_load_n(word, __ATOMIC_ACQUIRE) == value;
}

static bool set_fits(const char *arguments)
{
    ARGUMENT(uint64_t, handle, 0);
    return condition_exists(handle);
}

static void set_run(const char *arguments)
{
    ARGUMENT(uint64_t, handle, 0);
    ARGUMENT(uint32_t, value, 8);
    condition_set(handle, value);
}

static bool count_fits(const char *arguments)
{
    ARGUMENT(uint64_t, address, 0);
    ARGUMENT(uint64_t, handle, 8);
    return address % 4 == 0 && memory_touch(address, 4, true) == CUDA_SUCCESS && condition_exists(handle);
}

static void count_run(const char *arguments)
{
    ARGUMENT(uint32_t *, word, 0);
    ARGUMENT(uint64_t, handle, 8);
    uint32_t left = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    left -= left > 0;
    __atomic_store_n(word, left, __ATOMIC_RELEASE);
    condition_set(handle, left > 0);
}

static uint64_t some_time(const char *arguments)
{
    (void)arguments;
    return LAUNCH_NS;
}

static const struct builtin builtins[] = {
    {"sim_spin_for", 1, {8}, by_argument, NULL, NULL, NULL},
    {"sim_wait_for", 2, {8, 4}, no_time, wait_fits, NULL, wait_ready},
    {"vector_add", 4, {8, 8, 8, 4}, add_time, add_fits, add_run, NULL},
    {"fill_u32", 3, {8, 4, 8}, fill_time, fill_fits, fill_run, NULL},
    {"sim_set_condition", 2, {8, 4}, some_time, set_fits, set_run, NULL},
    {"sim_count_down", 2, {8, 8}, some_time, count_fits, count_run, NULL},
};

/* Whether `name` is `wanted`, plain or as C++ compilers write it: _Z, the length, the name, the types. */
static bool is_named(const char *name, const char *wanted)
{
    char *end;
    if (strcmp(name, wanted) == 0)
        return true;
    if (strncmp(name, "_Z", 2) != 0 || strtoul(name + 2, &end, 10) != strlen(wanted))
        return false;
    return strncmp(end, wanted, strlen(wanted)) == 0;
}

/* The number behind `before` and in front of `after`, such as 16384 in k_local16384; 0: none. */
static uint64_t number_in(const char *name, const char *before, const char *after)
{
    for (const char *at = strstr(name, before); at; at = strstr(at + 1, before)) {
        char *end;
        const char *digits = at + strlen(before);
        if (!isdigit((unsigned char)*digits))
            continue;
        uint64_t value = strtoull(digits, &end, 10);
        if (strncmp(end, after, strlen(after)) == 0 && end - digits < 10)
            return value;
    }
    return 0;
}

static void use_builtin(struct function *function, const struct builtin *builtin)
{
    uint32_t offset = 0;
    function->builtin = builtin;
    function->has_parameters = true;
    function->parameter_count = builtin->count;
    for (uint32_t i = 0; i < builtin->count; i++) {
        offset = (uint32_t)round_up(offset, builtin->sizes[i]);
        function->parameters[i] = (struct parameter){offset, builtin->sizes[i]};
        offset += builtin->sizes[i];
    }
}

void kernel_describe(struct function *function)
{
    const char *name = function->name;
    uint64_t us = number_in(name, "_", "us"), ms = number_in(name, "_", "ms");
    uint64_t local = number_in(name, "_local", "");
    function->duration = us ? us * 1000 : ms ? ms * 1000000 : DEFAULT_NS;
    if (local && local <= INT32_MAX)
        function->attributes[CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES] = (int)local;
    for (size_t i = 0; i < sizeof(builtins) / sizeof(builtins[0]); i++)
        if (is_named(name, builtins[i].name))
            use_builtin(function, &builtins[i]);
}
