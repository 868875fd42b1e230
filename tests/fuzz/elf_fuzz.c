/* Fuzzes the reader of ELF files, which are an image's: what the loader is told of them, and the note of libcuda. */
#include "_steps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct nvc_elf elf;
    char *note = NULL;
    size_t length = 0;
    int fd = memfd_create("elf", MFD_CLOEXEC);

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    if (nvc_elf_read(fd, &elf) == 0) {
        if (memchr(elf.soname, '\0', sizeof(elf.soname)) == NULL)
            abort();
        elf_arch(&elf);
        if (elf_forward_note(fd, &elf, &note, &length) < 0 || (note != NULL && length > size))
            abort();
        free(note);
    }
    close(fd);
    return 0;
}
