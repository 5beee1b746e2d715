/*
 * The bell: see bell.h and log_format.h.
 */
#include "bell.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../log_format.h"

static hz_bell *bell;
static unsigned heard; /* rings that were answered */
static char file[64];  /* its name, to be removed at the end */
static pid_t owner;    /* the process that made it: a child must not remove it */

__attribute__((destructor)) static void take_down(void)
{
    if (bell != NULL && owner == getpid()) (void)unlink(file);
}

bool hz_bell_hang(void)
{
    (void)snprintf(file, sizeof file, HZ_BELL_FOLDER "/" HZ_BELL_PATTERN, (unsigned)geteuid(),
                   (int)getpid());
    bell = NULL;
    heard = 0;
    owner = getpid();
    (void)unlink(file); /* of a process that had this id before */
    const int fd = open(file, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    void *mapped = MAP_FAILED;
    if (posix_fallocate(fd, 0, sizeof(hz_bell)) == 0)
        mapped = mmap(NULL, sizeof(hz_bell), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (mapped == MAP_FAILED) {
        (void)unlink(file);
        return false;
    }
    bell = mapped;
    bell->version = HZ_LOG_VERSION;
    bell->magic = HZ_BELL_MAGIC;
    return true;
}

bool hz_bell_rings(void)
{
    return bell != NULL && atomic_load_explicit(&bell->rings, memory_order_acquire) != heard;
}

bool hz_bell_answer(char *path, size_t size)
{
    heard = atomic_load_explicit(&bell->rings, memory_order_acquire);
    if (memchr(bell->pool_path, '\0', sizeof bell->pool_path) == NULL ||
        strlen(bell->pool_path) >= size)
        return false;
    strcpy(path, bell->pool_path);
    return true;
}
