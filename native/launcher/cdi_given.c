/* What a bundle says of the slice that its container is to get: slices, device nodes, mounts, LD_LIBRARY_PATH. The
 * rules are those of nvc/cdi/hooks/bundle.py and nodes.py; what they refuse, or what is seldom, is odd here. */
#include "cdi_reading.h"

#include <stdlib.h>
#include <string.h>

#define OPTION "--slice="
#define SEARCHED "LD_LIBRARY_PATH="
#define SEARCHED_MAX 65536

/* A string of printable ASCII, from malloc; odd where it is anything else. */
static char *text_of(struct reading *in, uint32_t at)
{
    size_t room = in->json.tokens[at].end - in->json.tokens[at].start + 1;
    char *text = malloc(room);

    if (!text || !json_text(&in->json, at, text, room)) {
        in->odd = true;
        free(text);
        return NULL;
    }
    return text;
}

static void add_slice(struct reading *in, uint32_t word, struct cdi_given *given)
{
    char *text = text_of(in, word);

    if (!text)
        return;
    bool again = false;
    for (size_t i = 0; i < given->slice_count; i++)
        again = again || !strcmp(given->slices[i], text + strlen(OPTION));
    in->odd = in->odd || (!again && given->slice_count == CDI_SLICES);
    if (again || in->odd)
        free(text);
    else
        given->slices[given->slice_count++] = text + strlen(OPTION);
}

static void read_slices(struct reading *in, uint32_t hooks, struct cdi_given *given)
{
    for (uint32_t item = first(in, hooks); item; item = after(in, hooks, item)) {
        uint32_t words = typed(in, item, "args", '[');
        bool at = false;
        for (uint32_t word = first(in, words); word; word = after(in, words, word)) {
            if (!json_begins(&in->json, word, "-"))
                at = json_is(&in->json, word, "slice-memory");
            else if (at && json_begins(&in->json, word, OPTION))
                add_slice(in, word, given);
        }
    }
}

/* A number of a device. */
static uint32_t number(struct reading *in, uint32_t at, const char *key)
{
    uint32_t found = typed(in, at, key, '0');
    const struct json_token *token = &in->json.tokens[found];
    uint32_t value = 0;

    if (!found || token->end - token->start > 9) {
        in->odd = true;
        return 0;
    }
    for (uint32_t i = token->start; i < token->end; i++) {
        if (in->json.text[i] < '0' || in->json.text[i] > '9')
            in->odd = true;
        value = 10 * value + (uint32_t)(in->json.text[i] - '0');
    }
    return value;
}

static void read_nodes(struct reading *in, struct cdi_given *given)
{
    uint32_t linux_table = typed(in, 0, "linux", '{');
    uint32_t list = linux_table ? typed(in, linux_table, "devices", '[') : 0;

    for (uint32_t item = first(in, list); item && !in->odd; item = after(in, list, item)) {
        uint32_t kind = typed(in, item, "type", '"');
        if (in->json.tokens[item].kind != '{' || !kind || given->node_count == CDI_NODES)
            in->odd = true;
        else if (json_is(&in->json, kind, "c") || json_is(&in->json, kind, "u"))
            given->nodes[given->node_count++] =
                (struct recipe_node){number(in, item, "major"), number(in, item, "minor")};
        else if (!json_is(&in->json, kind, "b") && !json_is(&in->json, kind, "p"))
            in->odd = true;
    }
}

static void read_sources(struct reading *in, struct cdi_given *given)
{
    uint32_t list = typed(in, 0, "mounts", '[');

    for (uint32_t item = first(in, list); item && !in->odd; item = after(in, list, item)) {
        uint32_t source = typed(in, item, "source", '"');
        if (!source || in->json.tokens[source].start == in->json.tokens[source].end)
            continue;
        if (given->source_count == CDI_SOURCES)
            in->odd = true;
        else
            given->sources[given->source_count++] = text_of(in, source);
    }
}

void read_given(struct reading *in, uint32_t hooks, uint32_t environment, struct cdi_given *given)
{
    read_slices(in, hooks, given);
    read_nodes(in, given);
    read_sources(in, given);
    /* Of a name that is given twice the last counts. */
    for (uint32_t item = first(in, environment); item && !in->odd; item = after(in, environment, item))
        if (json_begins(&in->json, item, SEARCHED)) {
            char *text = text_of(in, item);
            if (given->searched)
                free(given->searched - strlen(SEARCHED));
            given->searched = text ? text + strlen(SEARCHED) : NULL;
        }
    if (given->searched && strlen(given->searched) > SEARCHED_MAX)
        in->odd = true;
}

void free_given(struct cdi_given *given)
{
    for (size_t i = 0; given && i < given->slice_count; i++)
        free(given->slices[i] - strlen(OPTION));
    for (size_t i = 0; given && i < given->source_count; i++)
        free(given->sources[i]);
    if (given && given->searched)
        free(given->searched - strlen(SEARCHED));
    free(given);
}
