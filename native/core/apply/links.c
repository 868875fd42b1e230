/* Symbolic links in the rootfs: made in a held directory, replaced by rename, never followed. */
#include "_apply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AGAIN 1 /* somebody else works on the same name: what is there now decides */
#define TRIES 10

static int link_in(struct place *place, const char *text, const char *name)
{
    int result = symlinkat(text, place->parent, name);
    if (result < 0 && errno == EROFS && place_writer(place) >= 0)
        result = symlinkat(text, place->writer, name);
    return result;
}

/* Gives the link at `place` another text: it appears at once or not at all. */
int link_replace(struct place *place, const char *text)
{
    char temporary[NAME_MAX + 1];

    snprintf(temporary, sizeof(temporary), LINK_TEMPORARY, place->name);
    /* The name is nvc's: what a lost run, or an image, left there must not become the link. */
    if (place_remove(place, temporary, 0) < 0 || link_in(place, text, temporary) < 0)
        return -1;
    return place_rename(place, temporary);
}

/* Makes the link at `place`, where nothing was. */
static int make_link(struct applier *a, struct place *place, const char *text)
{
    size_t before = a->records.size;

    if (place_is_meant(a, place) < 0 || record(a, RECORD_LINK, place->path, text) < 0)
        return -1;
    if (link_in(place, text, place->name) < 0) {
        if (errno != EEXIST)
            return fail(a, errno, "symlink creation failed", place->path);
        withdraw(a, before);
        return AGAIN;
    }
    a->report->changes++;
    return 0;
}

/* Replaces the link at `place` (text `old`). */
static int replace_link(struct applier *a, struct place *place, const char *text, const char *old)
{
    char data[2 * NVC_PATH_MAX], temporary[NAME_MAX + 1], path[NVC_PATH_MAX + NAME_MAX];
    size_t directory = strlen(place->path) - strlen(place->name), before = a->records.size;

    if (place_is_meant(a, place) < 0)
        return -1;
    snprintf(temporary, sizeof(temporary), LINK_TEMPORARY, place->name);
    snprintf(path, sizeof(path), "%.*s%s", (int)directory, place->path, temporary);
    snprintf(data, sizeof(data), "%s\n%s", text, old);
    if (record(a, RECORD_TEMPORARY, path, "") < 0 || record(a, RECORD_RELINK, place->path, data) < 0)
        return -1;
    if (link_replace(place, text) < 0) {
        if (errno != EEXIST && errno != ENOENT)
            return fail(a, errno, "replace link", place->path);
        withdraw(a, before);
        return AGAIN;
    }
    a->report->changes++;
    return 0;
}

/* Something that is no link stands at the name: fine if it is the file that the link would lead to. */
static int occupied(struct applier *a, struct op *op, struct place *place, const struct stat *there)
{
    struct stat source;
    struct op *bind =
        op->head.operand && op->head.operand <= a->count ? &a->ops[op->head.operand - 1] : NULL;

    if (bind == NULL || !S_ISREG(there->st_mode))
        return fail(a, EEXIST, "symlink creation failed", place->path);
    if (fstat(bind->head.fd, &source) == 0 && source.st_dev == there->st_dev &&
        source.st_ino == there->st_ino)
        return 0;
    if (!bind->attached) {
        /* An earlier run attached it, so its tree here is a second, detached clone: attach that one. */
        int target = open_mountpoint(a, place, S_IFREG | 0644);
        int result = target < 0 ? -1 : attach(a, bind->tree, place, target);
        shut(target);
        bind->attached = result == 0;
        return result;
    }
    return cover_with_clone(a, place, bind->tree);
}

static int try_symlink(struct applier *a, struct op *op)
{
    char old[NVC_PATH_MAX];
    struct place place;
    struct stat st;
    int result = -1;

    if (place_find(a, op->target, false, true, &place) < 0)
        return -1;
    if (fstatat(place.parent, place.name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            fail(a, errno, "symlink creation failed", op->target);
        else
            result = make_link(a, &place, op->first);
    } else if (S_ISLNK(st.st_mode)) {
        ssize_t size = readlinkat(place.parent, place.name, old, sizeof(old) - 1);
        old[size < 0 ? 0 : size] = '\0';
        if (size >= 0 && strcmp(old, op->first) == 0)
            result = 0;
        else if (strchr(old, '\n') != NULL)
            fail(a, EINVAL, "replace link", op->target);
        else
            result = replace_link(a, &place, op->first, old);
    } else {
        result = occupied(a, op, &place, &st);
    }
    place_close(&place);
    return result;
}

int op_symlink(struct applier *a, struct op *op)
{
    int result = AGAIN;

    for (int i = 0; result == AGAIN && i < TRIES; i++)
        result = try_symlink(a, op);
    return result == AGAIN ? fail(a, EEXIST, "symlink creation failed", op->target) : result;
}
