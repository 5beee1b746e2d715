/*
 * A whole file in memory: see map_file.h.
 */
#include "map_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"

/* The file that was mapped last: a process reads one. */
static hz_mapped_file watched;
static const char *watched_path;

/* A part of a file that is there no more cannot be read. Any other cause ends the process. */
static void hear_lost_page(int number, siginfo_t *about, void *context)
{
    (void)context;
    if ((uintptr_t)about->si_addr - (uintptr_t)watched.bytes < watched.size)
        hz_fail("cannot read %s: it became shorter while it was read", watched_path);
    (void)signal(number, SIG_DFL);
}

static void watch_for_lost_pages(const hz_mapped_file *file, const char *path)
{
    struct sigaction action = {.sa_sigaction = hear_lost_page, .sa_flags = SA_SIGINFO};
    (void)sigemptyset(&action.sa_mask);
    watched = *file;
    watched_path = path;
    (void)sigaction(SIGBUS, &action, NULL);
}

hz_mapped_file hz_map_file(const char *path)
{
    struct stat about;
    hz_mapped_file file = {NULL, 0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) hz_refuse("cannot read %s: %s", path, strerror(errno));
    if (S_ISDIR(about.st_mode)) hz_refuse("cannot read %s: it is a folder", path);
    if (!S_ISREG(about.st_mode)) hz_refuse("cannot read %s: it is not a regular file", path);
    if (about.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) hz_refuse("cannot read %s: %s", path, strerror(errno));
        file = (hz_mapped_file){bytes, (size_t)about.st_size};
        watch_for_lost_pages(&file, path);
    }
    (void)close(fd);
    return file;
}

void hz_unmap_file(const hz_mapped_file *file)
{
    if (file->bytes == NULL) return;
    (void)munmap((void *)(uintptr_t)file->bytes, file->size);
    if (watched.bytes == file->bytes) watched.size = 0;
}
