/* What fake_os.h tells. */
#include "fake_os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"
#include "os.h"

__attribute__((weak)) _Atomic uint64_t os_ms;

void let_decay(void)
{
    while (hz_decay()) continue;
}

long os_call_behind(long number, const long w[HZ_OS_CALL_WORDS])
{
    const int saved = errno;
    const long result = syscall(number, w[0], w[1], w[2], w[3], w[4], w[5]);
    const int error = errno;
    errno = saved;
    return result == -1 ? -error : result;
}

__attribute__((weak)) long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    return os_call_behind(number, words);
}

long os_file(const char *text)
{
    const int fd = (int)syscall(SYS_memfd_create, "file", 0);
    const size_t length = strlen(text);
    if (write(fd, text, length) != (ssize_t)length || lseek(fd, 0, SEEK_SET) != 0) return -EIO;
    return fd;
}

long hz_os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    if (number == SYS_openat && getenv("TEST_STRICT") != NULL &&
        strcmp((const char *)words[1], "/proc/sys/vm/overcommit_memory") == 0)
        return os_file("2\n");
    return os_call(number, words);
}

static uint64_t ns_of(clockid_t clock)
{
    struct timespec now;
    (void)syscall(SYS_clock_gettime, clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

__attribute__((weak)) uint64_t os_ns(void)
{
    return os_ms != 0 ? os_ms * 1000000 : ns_of(CLOCK_MONOTONIC);
}

void hz_os_clock_find(void)
{
}

uint32_t hz_os_now_ms(void)
{
    return (uint32_t)(os_ms != 0 ? os_ms : ns_of(CLOCK_MONOTONIC_COARSE) / 1000000);
}

uint64_t hz_os_now_ns(void)
{
    return os_ns();
}

uint64_t hz_os_ticks(void)
{
    return os_ns();
}

uint32_t hz_os_ticks_of_ms(void)
{
    return 1000000;
}

uint32_t hz_os_ticks_settle(void)
{
    return hz_os_now_ms();
}
