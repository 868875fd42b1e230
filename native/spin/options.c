/* The command line. */
#include "spin.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char usage[] =
    "Usage: nvc-spin [--memory SIZE] [--kernel TIME] [--load PERCENT]\n"
    "                [--seconds N] [--device N]\n"
    "\n"
    "Loads a GPU, to see how nvc shares it. A step is one kernel; each second the\n"
    "program prints how many steps the GPU has done, and at the end a summary.\n"
    "Simulated GPUs and real ones work alike.\n"
    "\n"
    "  -m, --memory SIZE     take GPU memory: 512MiB, 10GiB or 25% (default: none)\n"
    "  -k, --kernel TIME     GPU time of a step: 500us, 1ms, 2s (default: 1ms)\n"
    "  -l, --load PERCENT    keep the GPU busy for this part of the time\n"
    "                        (default: 100%)\n"
    "  -s, --seconds N       stop after N seconds (default: at Ctrl-C)\n"
    "  -d, --device N        the GPU, as CUDA numbers those that it sees (default: 0)\n"
    "  -h, --help            show this help\n"
    "\n"
    "Steps are of a fixed amount of work, measured at the start: while others use\n"
    "the GPU, or a slice holds the program back, there are fewer of them a second.\n"
    "Where others prevent that measurement, only steps are counted.\n"
    "The exit code is 0 also after Ctrl-C, 1 if a call of the driver fails, and 2\n"
    "for a wrong option.\n"
    "\n"
    "Example: nvc-cli vgpu run --memory 4GiB --cores 25 -- nvc-spin --memory 1GiB\n";

enum { NS_PER_US = 1000, NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

static _Noreturn void refuse(const char *name, const char *text, const char *wanted)
{
    fprintf(stderr, "nvc-spin: --%s: %s: want %s\n", name, text, wanted);
    exit(2);
}

/* A whole number of at most `most` at the beginning of `text`, and what is behind it; false: there is none. */
static int leading_number(const char *text, uint64_t most, uint64_t *value, const char **rest)
{
    char *end;
    if (!isdigit((unsigned char)*text))
        return 0;
    errno = 0;
    *value = strtoull(text, &end, 10);
    *rest = end;
    return errno == 0 && *value <= most;
}

/* Sizes as nvc-cli reads them: binary units whatever the case, no fractions, and no GB, which may be either. */
static void read_memory(const char *text, struct options *out)
{
    static const char wanted[] = "10GiB, 512MiB, a number of bytes, or 25% of the device";
    static const struct {
        const char *name;
        int shift;
    } units[] = {{"", 0},   {"k", 10},  {"ki", 10},  {"kib", 10}, {"m", 20},  {"mi", 20}, {"mib", 20},
                 {"g", 30}, {"gi", 30}, {"gib", 30}, {"t", 40},   {"ti", 40}, {"tib", 40}};
    const char *rest;
    uint64_t value;
    if (!leading_number(text, UINT64_C(1) << 50, &value, &rest) || value == 0)
        refuse("memory", text, wanted);
    if (strcmp(rest, "%") == 0) {
        if (value > 100)
            refuse("memory", text, "at most 100%");
        out->memory_percent = (int)value;
        return;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (strcasecmp(rest, units[i].name) == 0 && value <= (UINT64_C(1) << 50) >> units[i].shift) {
            out->memory = value << units[i].shift;
            if (out->memory < UINT64_C(1) << 20)
                refuse("memory", text, "at least 1MiB: was a unit forgotten?");
            return;
        }
    refuse("memory", text, wanted);
}

static uint64_t read_time(const char *text)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"us", NS_PER_US}, {"ms", NS_PER_MS}, {"s", NS_PER_S}};
    const char *rest;
    uint64_t value;
    if (leading_number(text, NS_PER_S, &value, &rest) && value > 0)
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
            if (strcmp(rest, units[i].name) == 0 && value <= 10 * (uint64_t)NS_PER_S / units[i].ns)
                return value * units[i].ns;
    refuse("kernel", text, "a time such as 500us, 1ms or 2s, of 10s at most");
}

static int read_percent(const char *text)
{
    const char *rest;
    uint64_t value;
    if (!leading_number(text, 100, &value, &rest) || value == 0 || (*rest && strcmp(rest, "%") != 0))
        refuse("load", text, "1% to 100%");
    return (int)value;
}

static double read_seconds(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0 || value > 1e9)
        refuse("seconds", text, "a number of seconds above 0");
    return value;
}

static int read_device(const char *text)
{
    const char *rest;
    uint64_t value;
    if (!leading_number(text, 1 << 16, &value, &rest) || *rest)
        refuse("device", text, "a number from 0");
    return (int)value;
}

struct options options_read(int count, char **words)
{
    static const struct option known[] = {{"memory", required_argument, NULL, 'm'},
                                          {"kernel", required_argument, NULL, 'k'},
                                          {"load", required_argument, NULL, 'l'},
                                          {"seconds", required_argument, NULL, 's'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    struct options found = {.kernel_ns = NS_PER_MS, .load = 100};
    for (int letter; (letter = getopt_long(count, words, "m:k:l:s:d:h", known, NULL)) != -1;)
        switch (letter) {
        case 'm':
            read_memory(optarg, &found);
            break;
        case 'k':
            found.kernel_ns = read_time(optarg);
            break;
        case 'l':
            found.load = read_percent(optarg);
            break;
        case 's':
            found.seconds = read_seconds(optarg);
            break;
        case 'd':
            found.device = read_device(optarg);
            break;
        case 'h':
            fputs(usage, stdout);
            exit(fflush(stdout) != 0);
        default: /* getopt has said what is wrong */
            fputs("nvc-spin: --help lists the options\n", stderr);
            exit(2);
        }
    if (optind < count) {
        fprintf(stderr, "nvc-spin: %s: no such argument; --help lists the options\n", words[optind]);
        exit(2);
    }
    return found;
}
