/* Opens libcuda in one of the ways that programs do, and prints where the loader finds two of its functions: one that
 * the shim wraps, and one that passes. Arguments: the way, and a path. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *file_of(void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : "nowhere";
}

static void *need(void *handle)
{
    if (!handle)
        fprintf(stderr, "%s\n", dlerror()), exit(1);
    return handle;
}

static void report(void *handle)
{
    printf("%s %s\n", file_of(dlsym(handle, "cuMemAlloc_v2")), file_of(dlsym(handle, "cuMemFreeHost")));
}

int main(int count, char **word)
{
    const char *way = count > 1 ? word[1] : "", *path = count > 2 ? word[2] : "libcuda.so.1";
    void *handle;
    if (!strcmp(way, "open")) {
        report(need(dlopen(path, RTLD_NOW)));
    } else if (!strcmp(way, "global")) {
        need(dlopen(path, RTLD_LAZY | RTLD_GLOBAL));
        report(RTLD_DEFAULT);
    } else if (!strcmp(way, "noload")) {
        need(dlopen("libcuda.so.1", RTLD_NOW));
        report(need(dlopen(path, RTLD_NOW | RTLD_NOLOAD)));
    } else if (!strcmp(way, "again")) {
        handle = need(dlopen(path, RTLD_NOW));
        dlclose(handle);
        report(need(dlopen(path, RTLD_NOW)));
    } else if (!strcmp(way, "namespace")) {
        need(dlopen(path, RTLD_NOW));
        report(need(dlmopen(LM_ID_NEWLM, path, RTLD_NOW)));
    } else if (!strcmp(way, "plugin")) { /* linked with libcuda; it returns what it calls */
        handle = need(dlopen(path, RTLD_NOW | RTLD_DEEPBIND));
        void *(*function)(int) = (void *(*)(int))need(dlsym(handle, "plugin_function"));
        printf("%s %s\n", file_of(function(0)), file_of(function(1)));
    } else if (!strcmp(way, "version")) {
        handle = need(dlopen(path, RTLD_NOW));
        printf("%s -\n", file_of(dlvsym(handle, "cuMemAlloc_v2", "GLIBC_2.2.5")));
    } else {
        return 2;
    }
    return 0;
}
