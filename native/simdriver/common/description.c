#include "description.h"

#include <stdbool.h>
#include <string.h>

enum kind { TEXT, NUMBER, HEX, WIDE, VERSION, BUS_ID, FLAG };

struct field {
    const char *key;
    enum kind kind;
    size_t offset;
    uint64_t limit; /* TEXT: size of the array; numbers: largest value */
};

#define AT(type, member) offsetof(struct type, member)
#define TEXT_AT(type, member) offsetof(struct type, member), sizeof(((struct type *)0)->member)

static const struct field driver_fields[] = {
    {"driver_version", TEXT, TEXT_AT(sim_description, driver_version)},
    {"cuda_version", VERSION, AT(sim_description, cuda_version), 99},
    {"uvm_major", NUMBER, AT(sim_description, uvm_major), 4095},
    {"caps_major", NUMBER, AT(sim_description, caps_major), 4095},
};

static const struct field gpu_fields[] = {
    {"uuid", TEXT, TEXT_AT(sim_gpu, uuid)},
    {"name", TEXT, TEXT_AT(sim_gpu, name)},
    {"serial", TEXT, TEXT_AT(sim_gpu, serial)},
    {"minor", NUMBER, AT(sim_gpu, minor), 253},
    {"bus_id", BUS_ID, AT(sim_gpu, pci_domain), 0},
    {"pci_device_id", HEX, AT(sim_gpu, pci_device_id), UINT32_MAX},
    {"pci_subsystem_id", HEX, AT(sim_gpu, pci_subsystem_id), UINT32_MAX},
    {"brand", NUMBER, AT(sim_gpu, brand), 64},
    {"capability", VERSION, AT(sim_gpu, capability), 99},
    {"multiprocessors", NUMBER, AT(sim_gpu, multiprocessors), 4096},
    {"clock_mhz", NUMBER, AT(sim_gpu, clock_mhz), 100000},
    {"memory_clock_mhz", NUMBER, AT(sim_gpu, memory_clock_mhz), 100000},
    {"memory_bus_width", NUMBER, AT(sim_gpu, memory_bus_width), 65536},
    {"l2_cache", NUMBER, AT(sim_gpu, l2_cache), INT32_MAX},
    {"shared_memory", NUMBER, AT(sim_gpu, shared_memory), INT32_MAX},
    {"threads", NUMBER, AT(sim_gpu, threads), 65536},
    {"power_limit", NUMBER, AT(sim_gpu, power_limit), INT32_MAX},
    {"memory", WIDE, AT(sim_gpu, memory), UINT64_C(1) << 44},
    {"reserved_memory", WIDE, AT(sim_gpu, reserved_memory), UINT64_C(1) << 44},
    {"context_memory", WIDE, AT(sim_gpu, context_memory), UINT64_C(1) << 44},
    {"mig_capable", FLAG, AT(sim_gpu, mig_capable), 1},
    {"mig_enabled", FLAG, AT(sim_gpu, mig_enabled), 1},
};

static const struct field mig_fields[] = {
    {"mig_uuid", TEXT, TEXT_AT(sim_mig, uuid)},
    {"mig_profile", TEXT, TEXT_AT(sim_mig, profile)},
    {"mig_gpu_instance", NUMBER, AT(sim_mig, gpu_instance), 14},
    {"mig_compute_instance", NUMBER, AT(sim_mig, compute_instance), 7},
    {"mig_gpu_cap_minor", NUMBER, AT(sim_mig, gpu_cap_minor), 1 << 20},
    {"mig_compute_cap_minor", NUMBER, AT(sim_mig, compute_cap_minor), 1 << 20},
    {"mig_gpu_slices", NUMBER, AT(sim_mig, gpu_slices), 8},
    {"mig_compute_slices", NUMBER, AT(sim_mig, compute_slices), 8},
    {"mig_multiprocessors", NUMBER, AT(sim_mig, multiprocessors), 4096},
    {"mig_memory", WIDE, AT(sim_mig, memory), UINT64_C(1) << 44},
};

/* A section being filled: its fields, where they go, and which were seen. */
struct section {
    const struct field *fields;
    uint32_t count;
    char *base;
    uint32_t seen;
};

#define COUNT(array) ((uint32_t)(sizeof(array) / sizeof((array)[0])))

static bool read_digits(const char **at, uint32_t base, uint64_t limit, uint64_t *out)
{
    const char *digit = *at;
    uint64_t value = 0;
    for (;; digit++) {
        uint32_t d;
        if (*digit >= '0' && *digit <= '9')
            d = (uint32_t)(*digit - '0');
        else if (base == 16 && *digit >= 'a' && *digit <= 'f')
            d = (uint32_t)(*digit - 'a') + 10;
        else
            break;
        if (digit - *at >= 20 || d > limit || value > (limit - d) / base)
            return false;
        value = value * base + d;
    }
    if (digit == *at)
        return false;
    *at = digit;
    *out = value;
    return true;
}

static bool skip(const char **at, char c)
{
    if (**at != c)
        return false;
    (*at)++;
    return true;
}

static bool read_bus_id(const char *text, uint32_t out[3])
{
    uint64_t part[4];
    if (!read_digits(&text, 16, UINT32_MAX, &part[0]) || !skip(&text, ':') ||
        !read_digits(&text, 16, 0xff, &part[1]) || !skip(&text, ':') ||
        !read_digits(&text, 16, 0x1f, &part[2]) || !skip(&text, '.') ||
        !read_digits(&text, 16, 0, &part[3]) || *text)
        return false;
    for (int i = 0; i < 3; i++)
        out[i] = (uint32_t)part[i];
    return true;
}

static bool read_text(const char *text, char *out, size_t size)
{
    size_t length = strlen(text);
    if (length == 0 || length >= size)
        return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    memcpy(out, text, length + 1);
    return true;
}

static bool read_value(const struct field *field, const char *text, char *out)
{
    uint64_t value, second;
    switch (field->kind) {
    case TEXT:
        return read_text(text, out, (size_t)field->limit);
    case BUS_ID:
        return read_bus_id(text, (uint32_t *)(void *)out);
    case VERSION:
        if (!read_digits(&text, 10, field->limit, &value) || !skip(&text, '.') ||
            !read_digits(&text, 10, field->limit, &second) || *text)
            return false;
        *(struct sim_version *)(void *)out = (struct sim_version){(uint32_t)value, (uint32_t)second};
        return true;
    case WIDE:
        if (!read_digits(&text, 10, field->limit, &value) || *text)
            return false;
        *(uint64_t *)(void *)out = value;
        return true;
    case HEX:
        if (!skip(&text, '0') || !skip(&text, 'x') || !read_digits(&text, 16, field->limit, &value) || *text)
            return false;
        *(uint32_t *)(void *)out = (uint32_t)value;
        return true;
    case NUMBER:
    case FLAG:
        if (!read_digits(&text, 10, field->limit, &value) || *text)
            return false;
        *(uint32_t *)(void *)out = (uint32_t)value;
        return true;
    }
    return false;
}

static const char *assign(struct section *section, const char *key, const char *value)
{
    for (uint32_t i = 0; i < section->count; i++) {
        const struct field *field = &section->fields[i];
        if (strcmp(field->key, key) != 0)
            continue;
        if (section->seen & 1u << i)
            return "key given twice";
        section->seen |= 1u << i;
        return read_value(field, value, section->base + field->offset) ? NULL : "bad value";
    }
    return "unknown key";
}

static bool is_complete(const struct section *section)
{
    return section->seen == (section->count == 32 ? UINT32_MAX : (1u << section->count) - 1);
}

/* Begins the section that `gpu=N` or `mig=N` announces; the numbers must count up from 0. */
static const char *begin(struct sim_description *out, struct section *section, const char *key,
                         const char *value)
{
    bool is_gpu = strcmp(key, "gpu") == 0;
    struct sim_gpu *gpu = out->gpu_count ? &out->gpus[out->gpu_count - 1] : NULL;
    uint32_t *count = is_gpu ? &out->gpu_count : gpu ? &gpu->mig_count : NULL;
    uint64_t number;
    if (!is_complete(section))
        return "the section before lacks a key";
    if (!count)
        return "a MIG device without a GPU";
    if (!read_digits(&value, 10, 1000, &number) || *value || number != *count)
        return "numbers must count up from 0";
    if (number >= (is_gpu ? SIM_MAX_GPUS : SIM_MAX_MIG))
        return "too many devices";
    if (!is_gpu && !gpu->mig_enabled)
        return "a MIG device although MIG is off";
    (*count)++;
    *section = is_gpu ? (struct section){gpu_fields, COUNT(gpu_fields), (char *)&out->gpus[number], 0}
                      : (struct section){mig_fields, COUNT(mig_fields), (char *)&gpu->mig[number], 0};
    return NULL;
}

/* What no single line can tell. */
static const char *check(const struct sim_description *out)
{
    for (uint32_t i = 0; i < out->gpu_count; i++) {
        const struct sim_gpu *gpu = &out->gpus[i];
        uint64_t memory = 0;
        if (gpu->reserved_memory > gpu->memory || gpu->context_memory > gpu->memory)
            return "more memory reserved than there is";
        if (gpu->mig_enabled && !gpu->mig_capable)
            return "MIG enabled on a GPU without it";
        for (uint32_t m = 0; m < gpu->mig_count; m++)
            memory += gpu->mig[m].memory;
        if (memory > gpu->memory)
            return "MIG devices have more memory than their GPU";
        for (uint32_t other = 0; other < i; other++)
            if (out->gpus[other].minor == gpu->minor || strcmp(out->gpus[other].uuid, gpu->uuid) == 0)
                return "two GPUs with one minor or UUID";
    }
    return NULL;
}

static const char *parse_line(char *line, uint32_t number, struct sim_description *out,
                              struct section *section)
{
    char *value = strchr(line, '=');
    if (!value)
        return "no '=' in the line";
    *value++ = '\0';
    if (number == 1)
        return strcmp(line, "format") == 0 && strcmp(value, "1") == 0 ? NULL
                                                                      : "not a description of format 1";
    if (strcmp(line, "gpu") == 0 || strcmp(line, "mig") == 0)
        return begin(out, section, line, value);
    return assign(section, line, value);
}

int sim_description_parse(const char *text, size_t size, struct sim_description *out,
                          struct sim_parse_error *error)
{
    struct section section = {driver_fields, COUNT(driver_fields), (char *)out, 0};
    const char *end = text + size;
    *error = (struct sim_parse_error){0, NULL};
    memset(out, 0, sizeof(*out));
    if (size > SIM_MAX_DESCRIPTION)
        error->cause = "too long";
    while (!error->cause && text < end) {
        char line[SIM_MAX_LINE];
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = stop ? (size_t)(stop - text) : 0;
        error->line++;
        if (!stop || length >= sizeof(line) || memchr(text, '\0', length)) {
            error->cause = "not a line of text";
            break;
        }
        memcpy(line, text, length);
        line[length] = '\0';
        error->cause = parse_line(line, error->line, out, &section);
        text = stop + 1;
    }
    if (!error->cause && (error->line == 0 || !is_complete(&section)))
        error->cause = "ends before a section is complete";
    if (!error->cause)
        error->cause = check(out);
    return error->cause ? -1 : 0;
}
