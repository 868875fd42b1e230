/* How much device memory the data of a module take. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image {
    uint64_t bytes; /* of variables, and of code if it was asked for */
    bool exact;     /* all of the image was understood; else it may take more */
};

/* Looks into an image: PTX, cubin, or a fat binary of these. `size` is that of a file, whose text ends with a 0 behind
 * it; 0: the image is in the program's memory, and as long as it says. */
struct image image_read(const void *image, size_t size, bool code);
