/*
 * A whole file in memory: see map_file.h.
 */
#include "map_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

hz_mapped_file hz_map_file(const char *path)
{
    struct stat about;
    hz_mapped_file file = {NULL, 0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode)) hz_refuse("cannot read %s: it is not a regular file", path);
    if (about.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) hz_refuse("cannot read %s: %s", path, strerror(errno));
        file = (hz_mapped_file){bytes, (size_t)about.st_size};
    }
    (void)close(fd);
    return file;
}

void hz_unmap_file(const hz_mapped_file *file)
{
    if (file->bytes != NULL) (void)munmap((void *)(uintptr_t)file->bytes, file->size);
}
