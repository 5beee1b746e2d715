/*
 * A whole file in memory: see read_file.h.
 */
#include "read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

hz_file_bytes hz_read_file(const char *path)
{
    struct stat about;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode)) hz_refuse("cannot read %s: it is a folder", path);
    if (!S_ISREG(about.st_mode)) hz_refuse("cannot read %s: it is not a regular file", path);
    const size_t size = (size_t)about.st_size;
    if (size / (size_t)sysconf(_SC_PAGESIZE) >= (size_t)sysconf(_SC_PHYS_PAGES))
        hz_refuse("cannot read %s: it is larger than the memory of this machine", path);
    unsigned char *bytes = NULL;
    if (size > 0)
        bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) hz_refuse("cannot read %s: %s", path, strerror(errno));
    for (size_t done = 0; done < size;) {
        const ssize_t length = read(fd, bytes + done, size - done);
        if (length < 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
        if (length == 0) hz_fail("cannot read %s: it became shorter while it was read", path);
        done += (size_t)length;
    }
    (void)close(fd);
    return (hz_file_bytes){bytes, size};
}

void hz_drop_file(const hz_file_bytes *file)
{
    if (file->bytes != NULL) (void)munmap((void *)(uintptr_t)file->bytes, file->size);
}
