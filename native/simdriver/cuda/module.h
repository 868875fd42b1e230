/* Modules, libraries and their functions. */
#pragma once

#include "driver.h"

enum { MAX_PARAMETERS = 64, MAX_NAME = 1024 };

struct parameter {
    uint32_t offset, size;
};

/* What a kernel does on the simulated GPU. `duration` may look at its arguments. */
struct builtin {
    const char *name;
    uint32_t count;
    uint32_t sizes[6]; /* of its parameters; pointers come first */
    uint64_t (*duration)(const char *arguments);
    bool (*fits)(const char *arguments); /* whether the arguments name memory; NULL: it touches none */
    void (*run)(const char *arguments);
    bool (*ready)(struct op *op); /* it spins until then */
};

struct function {
    struct module *module;
    struct function *next;
    char *name;
    const struct builtin *builtin;
    uint64_t duration; /* ns, where no builtin says */
    bool loaded;
    bool has_parameters; /* they are known */
    uint32_t parameter_count;
    struct parameter parameters[MAX_PARAMETERS];
    int attributes[CU_FUNC_ATTRIBUTE_COUNT];
};

struct variable {
    struct variable *next;
    char *name;
    uint64_t size;
    struct memory *memory;
};

struct module {
    struct context *context; /* NULL: a library */
    struct module *next;
    bool is_text; /* PTX: all its functions are known */
    uint64_t charged;
    struct device *charged_on;
    struct function *functions;
    struct variable *variables;
};

/* image.c: fills a module from its image. */
CUresult image_read(struct module *module, const void *image);

/* kernels.c: the behaviour that a name stands for; every name has one. */
void kernel_describe(struct function *function);

/* graph_condition.c: values that kernels set */
bool condition_exists(uint64_t handle);
void condition_set(uint64_t handle, uint32_t value);

/* module.c */
CUresult module_function(struct module *module, const char *name, struct function **out);
struct function *module_add_function(struct module *module, const char *name, size_t length);
CUresult module_add_variable(struct module *module, const char *name, size_t length, uint64_t size);
CUresult module_place_variables(struct module *module, struct context *context);
void module_unload(struct module *module);
void modules_unload(struct context *context);
struct function *function_of(CUfunction handle);
CUresult module_count(const struct module *module, unsigned int *count);
CUresult module_list(const struct module *module, CUfunction *out, unsigned int room);
CUresult file_read(const char *path, char **out); /* with a zero behind it; to be freed */

/* launch.c */
struct launch {
    uint32_t grid[3], block[3], shared;
    CUstream stream;
    void **parameters, **extra;
    bool cooperative;
};
CUresult launch_make(struct function *function, const struct launch *launch, struct context *context,
                     struct op **out);

/* The arguments of a kernel operation, and what it was made from. */
struct kernel_call {
    struct function *function;
    struct context *context;
    uint32_t grid[3], block[3], shared;
    bool bad_address;
    uint32_t size;
    char arguments[];
};
