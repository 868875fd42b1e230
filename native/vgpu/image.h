/* How much device memory the data of a module take. */
#ifndef NVC_VGPU_IMAGE_H
#define NVC_VGPU_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the variables in an image (PTX, cubin, or a fat binary of these), and of its code if `code`. An estimate: 0
 * for a form that is not known. The image is the program's own, and as long as it says. */
uint64_t image_bytes(const void *image, bool code);

#endif
