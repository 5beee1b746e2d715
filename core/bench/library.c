/*
 * Reading the dynamic symbols of an ELF file: see library.h.
 */
#include "library.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
