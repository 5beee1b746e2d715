/*
 * Libraries of allocators: see libraries.h.
 */
#include "libraries.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

/* --- short names ----------------------------------------------------------------------------- */

/* A library is known by the start of its file's name; what follows is its flavour or version. */
static const struct {
    const char *start; /* of the file's name */
    const char *name;  /* of the allocator */
} known[] = {
    {"libc.so", "glibc"},         {"libc-", "glibc"},          {"libhz.", "hz"},
    {"libjemalloc.", "jemalloc"}, {"libmimalloc", "mimalloc"}, {"libtcmalloc", "tcmalloc"},
    {"libtbbmalloc", "tbb"},      {"libsnmalloc", "snmalloc"}, {"librpmalloc", "rpmalloc"},
    {"libgoogle-tcmalloc", "google_tcmalloc"},
};

const char *hz_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

const char *hz_allocator_name(const char *path)
{
    const char *file = hz_base_name(path);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strncmp(file, known[i].start, strlen(known[i].start)) == 0) return known[i].name;
    return NULL;
}

/* --- the dynamic symbols of an ELF file ------------------------------------------------------ */

/* A file in memory. */
typedef struct image {
    const unsigned char *bytes; /* NULL when it could not be mapped */
    size_t size;                /* in bytes */
} image;

static image map_image(const char *path)
{
    image file = {NULL, 0};
    struct stat status;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file;
    if (fstat(fd, &status) == 0 && status.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) file = (image){bytes, (size_t)status.st_size};
    }
    (void)close(fd);
    return file;
}

/* `count` objects of `size` bytes at `offset`, or NULL when the file ends before. */
static const void *part(const image *file, uint64_t offset, uint64_t count, uint64_t size)
{
    if (offset > file->size || count > (file->size - offset) / size) return NULL;
    return file->bytes + offset;
}

/* Whether one symbol table defines `symbol`; its names stand in section `names`. */
static bool table_defines(const image *file, const ElfW(Shdr) * table, const ElfW(Shdr) * names,
                          const char *symbol)
{
    const uint64_t count = table->sh_size / sizeof(ElfW(Sym));
    const ElfW(Sym) *symbols = part(file, table->sh_offset, count, sizeof(ElfW(Sym)));
    const char *text = part(file, names->sh_offset, names->sh_size, 1);
    const size_t length = strlen(symbol) + 1;
    if (symbols == NULL || text == NULL) return false;
    for (uint64_t i = 0; i < count; i++)
        if (symbols[i].st_shndx != SHN_UNDEF && symbols[i].st_name < names->sh_size &&
            length <= names->sh_size - symbols[i].st_name &&
            memcmp(text + symbols[i].st_name, symbol, length) == 0)
            return true;
    return false;
}

static bool image_defines(const image *file, const char *symbol)
{
    const ElfW(Ehdr) *header = part(file, 0, 1, sizeof *header);
    if (header == NULL || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return false;
    const ElfW(Shdr) *sections = part(file, header->e_shoff, header->e_shnum, sizeof *sections);
    if (sections == NULL) return false;
    for (unsigned i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_type == SHT_DYNSYM && sections[i].sh_link < header->e_shnum &&
            table_defines(file, &sections[i], &sections[sections[i].sh_link], symbol))
            return true;
    return false;
}

bool hz_library_defines(const char *path, const char *symbol)
{
    const image file = map_image(path);
    if (file.bytes == NULL) return false;
    const bool defines = image_defines(&file, symbol);
    (void)munmap((void *)(uintptr_t)file.bytes, file.size);
    return defines;
}

/* --- what is preloaded ----------------------------------------------------------------------- */

#define SEPARATORS ": " /* ld.so(8) */
#define BESIDE "libhz-deepbind.so"

/* Where it stands, seen from this program's folder: when installed, and in a build. */
static const char *const folders[] = {"../" HZ_LIBRARY_FOLDER, ".."};

/* The library's file; false when there is none that LD_PRELOAD could name. */
static bool find_library(char file[PATH_MAX])
{
    char program[PATH_MAX];
    char path[2 * PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) return false;
    program[length] = '\0';
    *strrchr(program, '/') = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s/" BESIDE, program, folders[i]);
        if (realpath(path, file) != NULL) return strpbrk(file, SEPARATORS) == NULL;
    }
    return false;
}

/* Whether one entry of LD_PRELOAD is an allocator other than hz. */
static bool is_allocator(const char *entry)
{
    const char *name = hz_allocator_name(entry);
    return name != NULL ? strcmp(name, "hz") != 0 : hz_library_defines(entry, "malloc");
}

/* Whether the entries hold an allocator that lacks the library. */
static bool is_incomplete(const char *entries)
{
    char *rest = strdup(entries);
    char *state = NULL;
    bool found = false;
    bool complete = false;
    if (rest == NULL) hz_fail("no memory for LD_PRELOAD");
    for (char *entry = strtok_r(rest, SEPARATORS, &state); entry != NULL;
         entry = strtok_r(NULL, SEPARATORS, &state)) {
        complete = complete || strcmp(hz_base_name(entry), BESIDE) == 0;
        found = found || is_allocator(entry);
    }
    free(rest);
    return found && !complete;
}

void hz_preload_complete(void)
{
    char file[PATH_MAX];
    char *longer;
    const char *entries = getenv("LD_PRELOAD");
    if (entries == NULL || !is_incomplete(entries) || !find_library(file)) return;
    if (asprintf(&longer, "%s:%s", entries, file) < 0 || setenv("LD_PRELOAD", longer, 1) != 0)
        hz_fail("no memory for LD_PRELOAD");
    free(longer);
}
