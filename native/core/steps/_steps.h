/* Internal to the steps. A failure stays: what follows it does no harm, and the caller learns of it in the end. */
#pragma once
#include "_files.h"
#include "steps.h"

#define NVC_STEPS_PATH 4096

/* Up to three strings that belong together. They are copies. */
struct row {
    char *a, *b, *c;
};

struct rows {
    struct row *at;
    size_t count, room;
};

struct nvc_steps {
    int rootfs;
    bool sliced;
    bool failed;
    struct nvc_steps_failure failure;
    bool compat_asked, profile_made, params_made;
    uint64_t root_mount;
    char machine[65]; /* uname(2) */
    struct buffer records;
    struct buffer mountinfo; /* read when it is first needed */
    struct rows links;       /* text, target */
    struct rows folders;     /* path */
    struct rows compat;      /* SONAME, path: before all else */
    struct rows entries;     /* SONAME, path, architecture */
    struct rows warnings;    /* text */
    struct rows hidden;      /* names of files that no link leads to */
    struct rows foreign;     /* directory, `y` or `n`: on a read-only mount of the host */
};

/* text.c; each marks a failure where memory is short. */
void steps_fail(struct nvc_steps *s, int error, const char *step, const char *path);
void steps_add(struct nvc_steps *s, struct buffer *buffer, const void *bytes, size_t size);
void rows_add(struct nvc_steps *s, struct rows *rows, const char *a, const char *b, const char *c);
void rows_sort(struct rows *rows); /* by `a` */
void rows_set(struct nvc_steps *s, char **field, const char *text);
void row_free(const struct row *row);
void rows_free(struct rows *rows);
bool rows_have(const struct rows *rows, const char *a);
void steps_warn(struct nvc_steps *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void steps_record(struct nvc_steps *s, char kind, const char *a, const char *b, const char *c);
bool steps_join(struct nvc_steps *s, char out[NVC_STEPS_PATH], const char *directory, const char *name);

/* look.c: everything in the rootfs is opened here. Where the host fails, that is a failure of the steps. */
int look(struct nvc_steps *s, int root, const char *path, uint64_t flags);
int look_regular(struct nvc_steps *s, int root, const char *path);
int reopen(struct nvc_steps *s, int fd, const char *path);
bool follow(struct nvc_steps *s, const char *path, char out[NVC_STEPS_PATH]);
bool tells_nothing(int error);
enum kind { MISSING, LINK, OTHER };
enum kind kind_at(struct nvc_steps *s, int root, const char *path);
uint64_t mount_of(struct nvc_steps *s, int fd);
bool is_foreign(struct nvc_steps *s, const char *directory);
void names_in(struct nvc_steps *s, int directory, struct rows *names, size_t most);
void mounted_in(struct nvc_steps *s, int directory, struct rows *names);
bool read_some(struct nvc_steps *s, int fd, struct buffer *content, size_t most);
struct ldcache_view;
/* The image's loader cache, into which the view looks; false where there is none that a loader can read. */
bool read_cache(struct nvc_steps *s, struct buffer *content, struct ldcache_view *view);
/* Whether both are one file or directory. */
bool is_same_place(struct nvc_steps *s, int root, const char *one, const char *other, uint64_t flags);

/* elf.c */
const char *elf_arch(const struct nvc_elf *elf); /* NULL: another one */
/* The JSON of .note.cuda.fwd_compatibility, from malloc; NULL with 0 where there is none. */
int elf_forward_note(int fd, const struct nvc_elf *elf, char **note, size_t *size);

/* search.c: an absolute path without empty parts, `.` and `..`, false for any other; whether a subdirectory of this name
 * comes before the directory it is in; has a directory searched once; has one of LD_LIBRARY_PATH searched, for each value
 * that its tokens can have. More than anybody has are a failure. */
bool search_clean(const char *path, char out[NVC_STEPS_PATH]);
bool search_is_before(const char *name);
void search_add(struct nvc_steps *s, struct rows *directories, const char *path);
void search_item(struct nvc_steps *s, struct rows *directories, const char *item);

/* Each takes in steps of one sort. */
void place_link(struct nvc_steps *s, const char *text, const char *target);
void find_libraries(struct nvc_steps *s, char version[NVC_STEPS_PATH]);
void place_libraries(struct nvc_steps *s);
void device_link(struct nvc_steps *s, const char *text, const char *target);
bool has_own_dev(struct nvc_steps *s);
void make_profile(struct nvc_steps *s);
void make_params(struct nvc_steps *s);
