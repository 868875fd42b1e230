/* Reads descriptions, each behind its length as 32 bits, and answers with a line: what was found, or why not. */
#include "../../native/simdriver/common/description.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    uint32_t size;
    while (fread(&size, sizeof(size), 1, stdin) == 1 && size <= 2 * SIM_MAX_DESCRIPTION) {
        struct sim_description *out = malloc(sizeof(*out));
        char *text = malloc(size ? size : 1);
        struct sim_parse_error error;
        if (!out || !text || fread(text, 1, size, stdin) != size)
            return 1;
        if (sim_description_parse(text, size, out, &error) != 0) {
            printf("%u %s\n", error.line, error.cause);
        } else {
            printf("ok %s %u.%u", out->driver_version, out->cuda_version.major, out->cuda_version.minor);
            for (uint32_t i = 0; i < out->gpu_count; i++)
                printf(" %s:%u:%04x:%02x:%llu:%u", out->gpus[i].uuid, out->gpus[i].minor,
                       out->gpus[i].pci_domain, out->gpus[i].pci_bus,
                       (unsigned long long)out->gpus[i].memory, out->gpus[i].mig_count);
            putchar('\n');
        }
        fflush(stdout);
        free(text);
        free(out);
    }
    return 0;
}
