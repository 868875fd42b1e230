#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define DESCRIPTION "/proc/driver/nvidia/sim/description"

/* stat(2) without the symbol stat@GLIBC_2.33. */
static int stat_path(const char *path, struct stat *out)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

bool sim_root_join(const struct sim_root *root, const char *path, char out[SIM_MAX_PATH])
{
    int length = snprintf(out, SIM_MAX_PATH, "%s%s", root->path, path);
    return length >= 0 && length < SIM_MAX_PATH;
}

bool sim_root_has_node(const struct sim_root *root, const char *path, uint32_t major_number,
                       uint32_t minor_number)
{
    char full[SIM_MAX_PATH];
    struct stat st;
    return sim_root_join(root, path, full) && stat_path(full, &st) == 0 && S_ISCHR(st.st_mode) &&
           st.st_rdev == makedev(major_number, minor_number);
}

bool sim_root_has_gpu(const struct sim_root *root, const struct sim_gpu *gpu)
{
    char path[64];
    snprintf(path, sizeof(path), "/dev/nvidia%u", gpu->minor);
    return sim_root_has_node(root, path, 195, gpu->minor);
}

/* Whether the capability file exists and its node has the minor. */
static bool has_capability(const struct sim_root *root, const char *file, uint32_t minor_number)
{
    char full[SIM_MAX_PATH], node[64];
    struct stat st;
    if (!sim_root_join(root, file, full) || stat_path(full, &st) != 0)
        return false;
    snprintf(node, sizeof(node), "/dev/nvidia-caps/nvidia-cap%u", minor_number);
    return sim_root_has_node(root, node, root->description.caps_major, minor_number);
}

bool sim_root_has_mig(const struct sim_root *root, const struct sim_gpu *gpu, const struct sim_mig *mig)
{
    char gi[96], ci[96];
    snprintf(gi, sizeof(gi), "/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u/access", gpu->minor,
             mig->gpu_instance);
    snprintf(ci, sizeof(ci), "/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u/ci%u/access", gpu->minor,
             mig->gpu_instance, mig->compute_instance);
    return has_capability(root, gi, mig->gpu_cap_minor) && has_capability(root, ci, mig->compute_cap_minor);
}

bool sim_root_has_mig_monitor(const struct sim_root *root)
{
    return has_capability(root, "/proc/driver/nvidia/capabilities/mig/config", 1) ||
           has_capability(root, "/proc/driver/nvidia/capabilities/mig/monitor", 2);
}

static int fail(char *message, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, size, format, arguments);
    va_end(arguments);
    return -1;
}

/* Cuts the last component off until a description is found. */
static bool find_root(struct sim_root *root, const char *file)
{
    struct stat st;
    if (!realpath(file, root->path))
        return false;
    for (char *slash = strrchr(root->path, '/'); slash; slash = strrchr(root->path, '/')) {
        char full[SIM_MAX_PATH];
        *slash = '\0';
        if (sim_root_join(root, DESCRIPTION, full) && stat_path(full, &st) == 0 && S_ISREG(st.st_mode))
            return true;
    }
    return false;
}

static ssize_t read_all(int fd, char *text, size_t size)
{
    size_t length = 0;
    while (length < size) {
        ssize_t part = read(fd, text + length, size - length);
        if (part < 0 && errno == EINTR)
            continue;
        if (part < 0)
            return -1;
        if (part == 0)
            break;
        length += (size_t)part;
    }
    return (ssize_t)length;
}

/* The loaded file that has the address: dladdr without libdl.so.2, which a driver root does not have. */
struct loaded_file {
    uintptr_t address;
    const char *name;
};

static int find_loaded(struct dl_phdr_info *info, size_t size, void *data)
{
    struct loaded_file *file = data;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD &&
            file->address - (info->dlpi_addr + segment->p_vaddr) < segment->p_memsz) {
            file->name = info->dlpi_name;
            return 1;
        }
    }
    return 0;
}

static int read_description(struct sim_root *root, char *message, size_t size)
{
    struct sim_parse_error error;
    char path[SIM_MAX_PATH];
    if (!sim_root_join(root, DESCRIPTION, path))
        return fail(message, size, "path of " DESCRIPTION " is too long");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return fail(message, size, "%s: %s", path, strerror(errno));
    char *text = malloc(SIM_MAX_DESCRIPTION + 1);
    ssize_t length = text ? read_all(fd, text, SIM_MAX_DESCRIPTION + 1) : -1;
    close(fd);
    int result = 0;
    if (length < 0)
        result = fail(message, size, "%s: cannot be read", path);
    else if (sim_description_parse(text, (size_t)length, &root->description, &error) != 0)
        result = fail(message, size, "%s: line %u: %s", path, error.line, error.cause);
    free(text);
    return result;
}

int sim_root_open(struct sim_root *root, char *message, size_t size)
{
    struct loaded_file self = {.address = (uintptr_t)sim_root_open};
    if (!dl_iterate_phdr(find_loaded, &self) || !find_root(root, self.name))
        return fail(message, size, "no " DESCRIPTION " above %s", self.name ? self.name : "this library");
    return read_description(root, message, size);
}

int sim_root_at(struct sim_root *root, const char *path, char *message, size_t size)
{
    if (!realpath(path, root->path))
        return fail(message, size, "%s: %s", path, strerror(errno));
    if (strcmp(root->path, "/") == 0)
        root->path[0] = '\0';
    return read_description(root, message, size);
}
