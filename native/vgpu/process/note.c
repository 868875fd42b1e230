/* The ELF note by which discovery, and whoever else looks at a library file, knows a shim: name "NVC", type 1, then
 * the version of the layouts and which library it stands for. */
#include "layout.h"

#ifndef SHIM_KIND
#define SHIM_KIND 1 /* 1: libcuda, 2: libnvidia-ml */
#endif

#define TEXT(value) TEXT_(value)
#define TEXT_(value) #value

__asm__(".pushsection .note.nvc.vgpu, \"a\", %note\n"
        ".balign 4\n"
        ".long 4, 8, 1\n"
        ".asciz \"NVC\"\n"
        ".long " TEXT(VGPU_LAYOUT_VERSION) ", " TEXT(SHIM_KIND) "\n"
                                                                ".popsection\n");
