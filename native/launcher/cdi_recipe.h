/* What a container's start needs of a slice that was made for a claim: the file `start` in the slice's directory, which
 * nvc/slices/build/start.py writes, and `about` beside it. */
#ifndef NVC_CDI_RECIPE_H
#define NVC_CDI_RECIPE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RECIPE_ITEMS = 64,
    RECIPE_LIBRARIES = 8,
    RECIPE_COVERS = 256,
    RECIPE_LOOKS = 256,
    RECIPE_MAX = 1 << 16
};

struct recipe_words {
    const char *at[RECIPE_ITEMS];
    size_t count;
};

struct recipe_node {
    uint32_t major, minor;
};

/* A library of the driver that gets a shim. */
struct recipe_library {
    const char *soname, *path; /* in the driver root */
    uint64_t device, inode, size, mtime;
};

/* A look at the host, in the words of replay_look. */
struct recipe_look {
    const char *place, *answer;
};

/* The strings are those of the text that was read. */
struct recipe {
    const char *driver;    /* its version */
    const char *root;      /* the driver root */
    const char *libraries; /* the directory of its libraries, in the container */
    const char *system;    /* where /proc and /sys are */
    uint64_t ledger;       /* bytes */
    bool nvcd;             /* a policy needs it */
    struct recipe_words options, slices, search;
    struct recipe_node nodes[RECIPE_ITEMS]; /* device nodes that the container may have */
    size_t node_count;
    struct recipe_library shimmed[RECIPE_LIBRARIES];
    size_t shimmed_count;
    const char *covers[RECIPE_COVERS]; /* libraries whose memory is not counted */
    size_t cover_count;
    struct recipe_look looks[RECIPE_LOOKS]; /* by which the rest holds */
    size_t look_count;
};

/* Reads a recipe of this version of nvc; `text` has `size` bytes and a NUL behind them, and is changed. */
bool recipe_parse(char *text, size_t size, const char *version, struct recipe *recipe);

/* Whether `about` is whole: as many lines as it says, and each as it is written. */
bool about_is_whole(const char *text, size_t size);
/* The value of a line, NULL where there is none; it ends with the line. */
const char *about_value(const char *text, size_t size, const char *name, size_t *length);
/* The text with these values in place of its own, from malloc; NULL where there is no memory. */
char *about_of(const char *text, size_t size, const char *rootfs, const char *container, const char *bundle,
               size_t *made);

/* Whether two lists of words, with a blank between each two, have the same words; whether they have one in common. */
bool words_equal(const char *one, size_t one_size, const char *other, size_t other_size);
bool words_meet(const char *one, size_t one_size, const char *other, size_t other_size);

#endif
