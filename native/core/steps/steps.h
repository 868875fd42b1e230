#pragma once
#include <stddef.h>
#include <stdint.h>

/* What the steps of nvc-cdi-hook mean for one container: from options and from what is in its rootfs to records of what
 * is to be done. Nothing is changed here. Everything in the rootfs may be hostile: it is opened below the descriptor of
 * its root only, and every size has a bound. */

struct nvc_steps;

struct nvc_steps_option {
    const char *name;
    const char *value;
};

/* Kinds of records: the byte, then its strings, each with its NUL. */
#define NVC_STEPS_TMPFS 84   /* T target, name, content: a tmpfs with one file */
#define NVC_STEPS_BIND 66    /* B path, `d` or `f`: an entry of /proc/driver/nvidia at its own place */
#define NVC_STEPS_LINK 76    /* L text, target */
#define NVC_STEPS_ENTRY 69   /* E SONAME, path, architecture: for the loader cache */
#define NVC_STEPS_WARNING 87 /* W text */
#define NVC_STEPS_SHADOW 83  /* S path, SONAME: a library that programs would load in place of the shim */
#define NVC_STEPS_PLACE 80   /* P directory: it has such libraries, or shims */
#define NVC_STEPS_HIDDEN 72  /* H directory: compatibility libraries that the container does not use */

/* For the container whose root is `rootfs`; `sliced`: it has slices, so that the image's forward-compatibility libraries
 * are left alone. NULL where there is no memory. */
struct nvc_steps *nvc_steps_new(int rootfs, int sliced);
/* Also of NULL. */
void nvc_steps_free(struct nvc_steps *steps);

/* Takes in one step. 0, or -1 where its options are wrong, the host fails, or what is found is out of bounds. */
int nvc_steps_add(struct nvc_steps *steps, const char *name, const struct nvc_steps_option *options,
                  size_t count);
/* Adds what follows from all steps together: links, entries of the loader cache, warnings. 0 or -1. */
int nvc_steps_finish(struct nvc_steps *steps);
/* What has failed: an errno, and what was tried where. */
struct nvc_steps_failure {
    int32_t error;
    char step[64];
    char path[512];
};
const struct nvc_steps_failure *nvc_steps_failed(const struct nvc_steps *steps);

/* A library of the image that the loader is to take before the driver's, of those that a slice has looked at. */
void nvc_steps_prefer(struct nvc_steps *steps, const char *soname, const char *path);
/* A file that a slice covers: no link that its SONAME needs is made, and the loader cache names no such link. */
void nvc_steps_hide(struct nvc_steps *steps, const char *name);

#define NVC_STEPS_SHADOWS_MAX 64   /* nobody has as many copies by accident: more are a failure with E2BIG */
#define NVC_STEPS_SEARCHED_MAX 512 /* nor directories to search: more are a failure with EOVERFLOW */
#define NVC_STEPS_NAMES_MAX 65536  /* nor names in one of them: more are a failure with EFBIG */
struct nvc_steps_file {
    uint64_t device;
    uint64_t inode;
};

/* Records which copies of libcuda and libnvidia-ml a loader would find in the rootfs. `libraries` is the directory of
 * the driver's libraries, `compat` that of the forward-compatibility libraries which the container uses, or "".
 * `search` are more directories, as LD_LIBRARY_PATH has them, also with `$LIB` and `$PLATFORM`: those that are not absolute
 * do not count. `shims` are no copies. 0 or -1. */
int nvc_steps_shadows(struct nvc_steps *steps, const char *libraries, const char *compat,
                      const char *const *search, size_t count, const struct nvc_steps_file *shims,
                      size_t shim_count);

/* Has the loader take the forward-compatibility libraries in `directory` before the driver's, if they are for the driver of
 * version `driver`; `cuda` is that of its CUDA, or "". Where one of `shims` lies over their libcuda, they are: an earlier
 * run has found that out. 0 or -1. */
int nvc_steps_compat(struct nvc_steps *steps, const char *driver, const char *cuda, const char *directory,
                     const struct nvc_steps_file *shims, size_t shim_count);

/* What is to be done, in order. The bytes are those of `steps`. */
const uint8_t *nvc_steps_records(const struct nvc_steps *steps, size_t *size);

/* What an ELF file says of itself. */
struct nvc_elf {
    int bits;              /* 32 or 64 */
    uint32_t machine;      /* e_machine */
    char soname[256];      /* "" where it has none */
    uint32_t linux_abi[3]; /* the oldest kernel that it is for; zeros where it names none */
    uint32_t layouts;      /* of a shim, the version of quota and ledger; 0: it is none */
    uint64_t sections;
    uint32_t section_size, section_count, section_names;
};
/* 0; -EBADMSG where it is no sound little-endian file; other codes where it cannot be read. */
int nvc_elf_read(int fd, struct nvc_elf *elf);
