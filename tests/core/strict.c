/*
 * With TEST_STRICT in the environment, a test program runs as under overcommit_memory=2: memory
 * that hz gave back may not even be read. The function takes the place of the C library's.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const int mode = (flags & O_CREAT) != 0 ? va_arg(list, int) : 0;
    va_end(list);
    if (getenv("TEST_STRICT") != NULL && strcmp(path, "/proc/sys/vm/overcommit_memory") == 0) {
        const int fd = memfd_create("strict", 0);
        if (write(fd, "2\n", 2) != 2 || lseek(fd, 0, SEEK_SET) != 0) return -1;
        return fd;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
