/* How much device memory the data of a module take. */
#ifndef NVC_VGPU_IMAGE_H
#define NVC_VGPU_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the variables in an image (PTX, cubin, or a fat binary of these), and of its code if `code`. An estimate: 0
 * for a form that is not known. `size` is that of a file, whose text ends with a 0 behind it; 0: the image is in the
 * program's memory, and as long as it says. */
uint64_t image_bytes(const void *image, size_t size, bool code);

#endif
