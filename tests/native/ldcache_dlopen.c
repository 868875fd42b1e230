/* Opens a library by name, as any program does, and prints what its function says and where it was found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct link_map *map;
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    const char *(*say)(void) = library ? (const char *(*)(void))dlsym(library, "nvc_test") : NULL;

    if (say == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
        puts("not found");
        return 0;
    }
    printf("%s %s\n", say(), map->l_name);
    return 0;
}
