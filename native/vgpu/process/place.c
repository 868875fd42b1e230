/* Symbols of the private library are read from its own tables: dlsym would need a handle, which only dlopen gives, and
 * both are at other versions in older glibc. The loader has relocated the library before it runs us. */
#include "place.h"

#include "log.h"
#include "system.h"

#include <elf.h>
#include <link.h>
#include <string.h>

struct search {
    const char *suffix; /* of the object's name; NULL: the object that holds `address` */
    uintptr_t address;
    ElfW(Addr) base;
    const ElfW(Dyn) * dynamic;
    char name[PLACE_MAX];
    bool found;
};

static bool holds(const struct dl_phdr_info *info, uintptr_t address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && address - info->dlpi_addr - segment->p_vaddr < segment->p_memsz)
            return true;
    }
    return false;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && text[length - wanted - 1] == '/' && strcmp(text + length - wanted, end) == 0;
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
    struct search *search = data;
    (void)size;
    if (!info->dlpi_name || strlen(info->dlpi_name) >= PLACE_MAX ||
        !(search->suffix ? ends_with(info->dlpi_name, search->suffix) : holds(info, search->address)))
        return 0;
    strcpy(search->name, info->dlpi_name);
    search->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            search->dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    search->found = true;
    return 1;
}

bool place_join(const char *name, char out[PLACE_MAX])
{
    struct search search = {.address = (uintptr_t)place_join};
    dl_iterate_phdr(visit, &search);
    char *slash = search.found ? strrchr(search.name, '/') : NULL;
    if (!slash || (size_t)(slash - search.name) + 1 + strlen(name) >= PLACE_MAX)
        return false;
    slash[1] = '\0';
    strcpy(out, search.name);
    strcat(out, name);
    return true;
}

int place_open(const char *name, int flags, char path[PLACE_MAX])
{
    int fd = place_join(name, path) ? file_open(path, flags) : -1;
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (high < 0 && fd >= 0)
        high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
    if (high < 0)
        return fd;
    file_close(fd);
    return high;
}

bool place_is_same(uintptr_t one, uintptr_t other)
{
    struct search search = {.address = one};
    dl_iterate_phdr(visit, &search);
    struct search second = {.address = other};
    dl_iterate_phdr(visit, &second);
    return search.found && second.found && search.dynamic == second.dynamic;
}

struct symbols {
    uintptr_t base;
    const ElfW(Sym) * table;
    const char *strings;
    const uint32_t *gnu_hash, *hash;
};

/* glibc writes absolute addresses over these entries on all machines but those that keep the section read-only. */
static uintptr_t pointer_of(const struct search *library, ElfW(Addr) value)
{
    return value < library->base ? library->base + value : value;
}

static struct symbols symbols_of(const struct search *library)
{
    struct symbols out = {.base = library->base};
    for (const ElfW(Dyn) *entry = library->dynamic; entry && entry->d_tag != DT_NULL; entry++) {
        uintptr_t at = pointer_of(library, entry->d_un.d_ptr);
        if (entry->d_tag == DT_SYMTAB)
            out.table = (const ElfW(Sym) *)at;
        else if (entry->d_tag == DT_STRTAB)
            out.strings = (const char *)at;
        else if (entry->d_tag == DT_GNU_HASH)
            out.gnu_hash = (const uint32_t *)at;
        else if (entry->d_tag == DT_HASH)
            out.hash = (const uint32_t *)at;
    }
    return out;
}

static void *address_of(const struct symbols *in, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &in->table[index];
    if (symbol->st_shndx == SHN_UNDEF || strcmp(in->strings + symbol->st_name, name) != 0)
        return NULL;
    return (void *)(in->base + symbol->st_value);
}

static void *find_gnu(const struct symbols *in, const char *name)
{
    const uint32_t *table = in->gnu_hash;
    uint32_t hash = 5381, buckets = table[0], first = table[1], bloom = table[2];
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    const uint32_t *bucket = table + 4 + bloom * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    for (; index >= first && index; index++) {
        void *address = ((chain[index - first] ^ hash) >> 1) == 0 ? address_of(in, index, name) : NULL;
        if (address || chain[index - first] & 1)
            return address;
    }
    return NULL;
}

static void *find_sysv(const struct symbols *in, const char *name)
{
    uint32_t hash = 0;
    for (const char *c = name; *c; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    uint32_t buckets = in->hash[0];
    uint32_t index = buckets ? in->hash[2 + hash % buckets] : 0;
    for (; index; index = in->hash[2 + buckets + index]) {
        void *address = address_of(in, index, name);
        if (address)
            return address;
    }
    return NULL;
}

void place_resolve(const char *file, const char *const *names, void *_Atomic *out, size_t count,
                   void *missing)
{
    struct search library = {.suffix = file};
    struct symbols symbols = {0};
    dl_iterate_phdr(visit, &library);
    if (library.found)
        symbols = symbols_of(&library);
    if (!symbols.table || !symbols.strings || !(symbols.gnu_hash || symbols.hash)) {
        LOG_ONCE("%s: the real library is not loaded", file);
        symbols = (struct symbols){0};
    }
    for (size_t i = 0; i < count; i++) {
        void *address = symbols.gnu_hash ? find_gnu(&symbols, names[i])
                        : symbols.hash   ? find_sysv(&symbols, names[i])
                                         : NULL;
        atomic_store(&out[i], address ? address : missing);
    }
}
