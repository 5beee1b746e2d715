/*
 * hz's system calls and clock, which go past the C library, by the functions of that: a test
 * program that looks into hz may have its own in their place.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "os.h"
#include "os_call.h"

static long call(long number, const long *w)
{
    switch (number) {
    case SYS_mmap:
        return (long)mmap((void *)w[0], (size_t)w[1], (int)w[2], (int)w[3], (int)w[4], w[5]);
    case SYS_munmap:
        return munmap((void *)w[0], (size_t)w[1]);
    case SYS_mprotect:
        return mprotect((void *)w[0], (size_t)w[1], (int)w[2]);
    case SYS_madvise:
        return madvise((void *)w[0], (size_t)w[1], (int)w[2]);
    case SYS_openat:
        return open((const char *)w[1], (int)w[2], (int)w[3]);
    case SYS_nanosleep:
        return nanosleep((const struct timespec *)w[0], NULL);
    case SYS_sched_yield:
        return sched_yield();
    default:
        return syscall(number, w[0], w[1], w[2], w[3], w[4], w[5]);
    }
}

long hz_os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const int saved = errno;
    const long result = call(number, words);
    const int error = errno;
    errno = saved;
    return result == -1 ? -error : result;
}

void hz_os_clock_find(void)
{
}

uint32_t hz_os_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
}

uint64_t hz_os_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
