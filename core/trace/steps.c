/*
 * The list of steps: see steps.h.
 */
#include "steps.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arguments.h"

enum { GROWTH = 1 << 15 }; /* steps that room is made for at once, at least */

/* Opens a file without a name in the folder of `beside`: no other process can open it. */
static int open_nameless(const char *beside)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(beside, '/');
    const int length = slash != NULL ? (int)(slash - beside) + 1 : 0;
    (void)snprintf(folder, sizeof folder, "%.*s.", length, beside);
    int fd = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd >= 0 || errno != EOPNOTSUPP) return fd;
    (void)snprintf(folder, sizeof folder, "%.*s.hz-steps-%d", length, beside, (int)getpid());
    fd = open(folder, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) (void)unlink(folder);
    return fd;
}

void hz_steps_make(hz_steps *steps, const char *beside)
{
    *steps = (hz_steps){.fd = open_nameless(beside)};
    if (steps->fd < 0) hz_fail("cannot write beside %s: %s", beside, strerror(errno));
}

/* The file has blocks for all of it: a full disk is an error here, not a signal later. */
static void steps_grow(hz_steps *steps)
{
    const uint64_t room = steps->room + GROWTH + steps->room / 4;
    const off_t from = (off_t)(steps->room * sizeof(hz_step));
    const off_t to = (off_t)(room * sizeof(hz_step));
    const int failure = posix_fallocate(steps->fd, from, to - from);
    if (failure != 0) hz_fail("no room to put the operations in order: %s", strerror(failure));
    if (steps->at != NULL) (void)munmap(steps->at, (size_t)from);
    steps->at = mmap(NULL, (size_t)to, PROT_READ | PROT_WRITE, MAP_SHARED, steps->fd, 0);
    if (steps->at == MAP_FAILED) hz_fail("no memory for the operations: %s", strerror(errno));
    steps->room = room;
}

uint64_t hz_steps_add(hz_steps *steps, const hz_step *step)
{
    if (steps->count == steps->room) steps_grow(steps);
    steps->at[steps->count] = *step;
    return steps->count++;
}

void hz_steps_drop(hz_steps *steps)
{
    if (steps->at != NULL) (void)munmap(steps->at, steps->room * sizeof(hz_step));
    (void)close(steps->fd);
    *steps = (hz_steps){.fd = -1};
}
