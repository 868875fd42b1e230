/* Strings and lists that grow. */
#include "_steps.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 262144

/* The first failure is the one that is told. */
void steps_fail(struct nvc_steps *s, int error, const char *step, const char *path)
{
    if (s->failed)
        return;
    s->failed = true;
    s->failure.error = error ? error : EIO;
    snprintf(s->failure.step, sizeof(s->failure.step), "%s", step);
    snprintf(s->failure.path, sizeof(s->failure.path), "%s", path);
}

static void no_memory(struct nvc_steps *s)
{
    steps_fail(s, ENOMEM, "look into container", "");
}

void steps_add(struct nvc_steps *s, struct buffer *buffer, const void *bytes, size_t size)
{
    if (!buffer_add(buffer, bytes, size))
        no_memory(s);
}

static char *copied(struct nvc_steps *s, const char *text)
{
    char *copy = text == NULL ? NULL : strdup(text);

    if (text != NULL && copy == NULL)
        no_memory(s);
    return copy;
}

void rows_add(struct nvc_steps *s, struct rows *rows, const char *a, const char *b, const char *c)
{
    if (rows->count == rows->room) {
        size_t room = rows->room ? 2 * rows->room : 32;
        struct row *larger = rows->count < ROWS_MAX ? realloc(rows->at, room * sizeof(*larger)) : NULL;
        if (larger == NULL) {
            no_memory(s);
            return;
        }
        rows->at = larger;
        rows->room = room;
    }
    struct row row = {copied(s, a), copied(s, b), copied(s, c)};
    if (s->failed) {
        row_free(&row);
    } else {
        rows->at[rows->count++] = row;
    }
}

static int by_name(const void *one, const void *other)
{
    return strcmp(((const struct row *)one)->a, ((const struct row *)other)->a);
}

void rows_sort(struct rows *rows)
{
    if (rows->count)
        qsort(rows->at, rows->count, sizeof(*rows->at), by_name);
}

void rows_set(struct nvc_steps *s, char **field, const char *text)
{
    char *copy = copied(s, text);

    if (copy != NULL) {
        free(*field);
        *field = copy;
    }
}

void row_free(const struct row *row)
{
    free(row->a);
    free(row->b);
    free(row->c);
}

void rows_free(struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++)
        row_free(&rows->at[i]);
    free(rows->at);
    *rows = (struct rows){.at = NULL};
}

bool rows_have(const struct rows *rows, const char *a)
{
    for (size_t i = 0; i < rows->count; i++)
        if (strcmp(rows->at[i].a, a) == 0)
            return true;
    return false;
}

void steps_warn(struct nvc_steps *s, const char *format, ...)
{
    char text[3 * NVC_STEPS_PATH];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    rows_add(s, &s->warnings, text, NULL, NULL);
}

/* Adds a record of what is to be done. */
void steps_record(struct nvc_steps *s, char kind, const char *a, const char *b, const char *c)
{
    steps_add(s, &s->records, &kind, 1);
    for (size_t i = 0; i < 3; i++) {
        const char *text = (const char *[]){a, b, c}[i];
        if (text != NULL)
            steps_add(s, &s->records, text, strlen(text) + 1);
    }
}

/* `directory`/`name`; false, and a failure, where it is too long for a path. */
bool steps_join(struct nvc_steps *s, char out[NVC_STEPS_PATH], const char *directory, const char *name)
{
    int length = snprintf(out, NVC_STEPS_PATH, "%s/%s", directory, name);

    if (length < 0 || length >= NVC_STEPS_PATH) {
        steps_fail(s, ENAMETOOLONG, "look into container", directory);
        return false;
    }
    return true;
}
