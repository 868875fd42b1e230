/* Fuzzes the readers of what a slice's directory holds: what is accepted lies in the text, and a changed `about` is whole
 * and says what it was given. */
#include "cdi_recipe.h"

#include <stdlib.h>
#include <string.h>

static char *copy_of(const uint8_t *data, size_t size, size_t more)
{
    char *copy = malloc(size + more ? size + more
                                    : 1); /* exactly as large, so that the sanitizer sees a byte too far */

    if (copy == NULL)
        abort();
    if (size)
        memcpy(copy, data, size);
    if (more)
        copy[size] = '\0';
    return copy;
}

static void inside(const char *text, size_t size, const char *at)
{
    if (at < text || at + strlen(at) > text + size)
        abort();
}

static void check_recipe(const uint8_t *data, size_t size)
{
    struct recipe recipe;
    char *text = copy_of(data, size, 1);

    if (recipe_parse(text, size, "1", &recipe)) {
        const struct recipe_words *lists[] = {&recipe.options, &recipe.slices, &recipe.search};
        for (int i = 0; i < 3; i++)
            for (size_t j = 0; j < lists[i]->count; j++)
                inside(text, size, lists[i]->at[j]);
        for (size_t i = 0; i < recipe.shimmed_count; i++) {
            inside(text, size, recipe.shimmed[i].soname);
            inside(text, size, recipe.shimmed[i].path);
        }
        for (size_t i = 0; i < recipe.cover_count; i++)
            inside(text, size, recipe.covers[i]);
        for (size_t i = 0; i < recipe.look_count; i++) {
            inside(text, size, recipe.looks[i].place);
            inside(text, size, recipe.looks[i].answer);
        }
        inside(text, size, recipe.driver);
        if (recipe.root[0] != '/' || recipe.libraries[0] != '/' || recipe.node_count > RECIPE_ITEMS)
            abort();
    }
    free(text);
}

static void check_about(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"holds", "claim", "rootfs"};
    size_t length = 0, made_size = 0;
    char *text = copy_of(data, size, 0);

    if (about_is_whole(text, size)) {
        for (int i = 0; i < 3; i++) {
            const char *value = about_value(text, size, names[i], &length);
            if (value != NULL && (value < text || value + length >= text + size))
                abort();
        }
        char *made = about_of(text, size, "/a b%", "x", "/bundle", &made_size);
        if (made != NULL) {
            const char *bundle = about_value(made, made_size, "bundle", &length);
            if (!about_is_whole(made, made_size) || bundle == NULL || length != 7)
                abort();
        }
        free(made);
    }
    size_t half = size / 2;
    if (words_equal(text, half, text + half, size - half) && half && text[0] != ' ' &&
        !words_meet(text, half, text + half, size - half))
        abort();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_recipe(data, size);
    check_about(data, size);
    return 0;
}
