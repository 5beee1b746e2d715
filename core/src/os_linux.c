/*
 * The system, on Linux.
 */
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"
#include "text.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Of the kernel's own headers, which musl's compiler does not find: FUTEX_WAIT and FUTEX_WAKE, of
 * one process. */
enum { FUTEX_WAIT_HERE = 0 | 128, FUTEX_WAKE_HERE = 1 | 128 };

#define ADDRESSES_MIN ((uintptr_t)1 << 39)

/* ThreadSanitizer takes an address as a hint only, unless MAP_FIXED is there, too. Kernels that
 * know MAP_FIXED_NOREPLACE replace nothing even then. */
#ifdef __SANITIZE_THREAD__
#define FIXED_NOREPLACE (MAP_FIXED_NOREPLACE | MAP_FIXED)
#else
#define FIXED_NOREPLACE MAP_FIXED_NOREPLACE
#endif

/* ---- memory --------------------------------------------------------------------------------- */

static void *map_fresh(void *hint, size_t bytes, int protection, int flags)
{
    void *address = mmap(hint, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

/* A kernel that does not know MAP_FIXED_NOREPLACE (before 4.17) takes the address for a hint. */
hz_os_claimed hz_os_claim(void *address, size_t bytes, bool is_writable)
{
    const int saved = errno;
    const int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *got = map_fresh(address, bytes, protection, MAP_NORESERVE | FIXED_NOREPLACE);
    if (got == address) return HZ_OS_CLAIMED;
    const bool is_taken = got != NULL || errno == EEXIST;
    if (got != NULL) munmap(got, bytes);
    errno = saved;
    return is_taken ? HZ_OS_TAKEN : HZ_OS_REFUSED;
}

uintptr_t hz_os_find_addresses(size_t bytes)
{
    void *address = map_fresh(NULL, bytes, PROT_NONE, MAP_NORESERVE);
    if (address != NULL) munmap(address, bytes);
    return (uintptr_t)address;
}

/* Maps it without access, so that nothing becomes resident under mlockall. */
bool hz_os_is_unmapped(void *address, size_t bytes)
{
    const int saved = errno;
    void *got = map_fresh(address, bytes, PROT_NONE, MAP_NORESERVE | FIXED_NOREPLACE);
    const bool is_taken = got != address && (got != NULL || errno == EEXIST);
    if (got != NULL) munmap(got, bytes);
    errno = saved;
    return !is_taken;
}

/* Derived from the stack, which the kernel puts at their end (valgrind does not). */
uintptr_t hz_os_addresses(void)
{
    const uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
    const uintptr_t addresses = (uintptr_t)1 << (64 - __builtin_clzl(stack));
    return addresses < ADDRESSES_MIN ? ADDRESSES_MIN : addresses;
}

bool hz_os_allow_writing(void *address, size_t bytes)
{
    return mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
}

bool hz_os_forbid(void *address, size_t bytes)
{
    return mprotect(address, bytes, PROT_NONE) == 0;
}

void *hz_os_map(size_t bytes)
{
    return map_fresh(NULL, bytes, PROT_READ | PROT_WRITE, 0);
}

size_t hz_os_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool hz_os_purge(void *address, size_t bytes)
{
    return madvise(address, bytes, MADV_DONTNEED) == 0;
}

/* A move of more than one mapping fails, and older kernels have unmapped the target by then. So the
 * range is asked to grow in place: if it is one mapping, it lacks room at most. */
bool hz_os_is_one_mapping(void *address, size_t bytes)
{
    const size_t more = hz_os_page_bytes();
    void *grown = mremap(address, bytes, bytes + more, 0);
    if (grown != MAP_FAILED) munmap((char *)address + bytes, more);
    return grown != MAP_FAILED || errno == ENOMEM;
}

bool hz_os_move(void *from, void *to, size_t bytes)
{
    static _Atomic bool is_unknown; /* flags: before Linux 5.7, under valgrind */
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    const int hole = MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (hz_atomic_peek(&is_unknown) || hz_os_is_commit_strict()) return false;
    if (mremap(from, bytes, bytes, flags, to) == to) return true;
    if (errno == EINVAL) hz_atomic_poke(&is_unknown, true);
    (void)map_fresh(to, bytes, PROT_READ | PROT_WRITE, hole); /* if the target is gone */
    return false;
}

bool hz_os_renew(void *address, size_t bytes)
{
    return map_fresh(address, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE | MAP_FIXED) == address;
}

bool hz_os_uncommit(void *address, size_t bytes)
{
    return map_fresh(address, bytes, PROT_NONE, MAP_NORESERVE | MAP_FIXED) != NULL;
}

bool hz_os_ask_huge_pages(void *address, size_t bytes)
{
    return madvise(address, bytes, MADV_HUGEPAGE) == 0;
}

bool hz_os_decline_huge_pages(void *address, size_t bytes)
{
    return madvise(address, bytes, MADV_NOHUGEPAGE) == 0;
}

bool hz_os_populate(void *address, size_t bytes)
{
    return madvise(address, bytes, MADV_POPULATE_WRITE) == 0;
}

/* ---- threads -------------------------------------------------------------------------------- */

void hz_os_sleep_while(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_HERE, value, NULL, NULL, 0);
}

void hz_os_sleep_while_ms(_Atomic uint32_t *word, uint32_t value, uint32_t ms)
{
    const struct timespec span = {ms / 1000, (long)(ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT_HERE, value, &span, NULL, 0);
}

void hz_os_wake_one(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_HERE, 1, NULL, NULL, 0);
}

void hz_os_yield(void)
{
    sched_yield();
}

void hz_os_sleep_us(uint32_t us)
{
    struct timespec span = {us / 1000000, (long)(us % 1000000) * 1000};
    nanosleep(&span, NULL);
}

/* ---- the machine and the process ------------------------------------------------------------ */

/* Since some moment before the process began. */
static uint64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint32_t hz_os_now_ms(void)
{
    return (uint32_t)(now_ns(CLOCK_MONOTONIC_COARSE) / 1000000);
}

uint64_t hz_os_now_ns(void)
{
    return now_ns(CLOCK_MONOTONIC);
}

uint64_t hz_os_memory_bytes(void)
{
    struct sysinfo info;
    if (sysinfo(&info) != 0) return UINT64_C(1) << 32;
    return (uint64_t)info.totalram * info.mem_unit;
}

/* Whether the kernel promises no more memory than there is. Then a mapping that replaces another
 * one may fail and leave a hole. */
bool hz_os_is_commit_strict(void)
{
    static _Atomic int known = -1;
    char text[8];
    if (hz_atomic_peek(&known) < 0) {
        const size_t length = hz_text_read("/proc/sys/vm/overcommit_memory", text, sizeof text);
        hz_atomic_poke(&known, length > 0 && *text == '2');
    }
    return hz_atomic_peek(&known) != 0;
}

uint64_t hz_os_address_space_left(void)
{
    struct rlimit limit;
    char text[64];
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    if (hz_text_read("/proc/self/statm", text, sizeof text) == 0) return limit.rlim_cur;
    uint64_t used = strtoull(text, NULL, 10) * (uint64_t)hz_os_page_bytes();
    return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

uint32_t hz_os_mappings_most(void)
{
    enum { USUAL = 65530 };
    char text[32];
    const char *path = "/proc/sys/vm/max_map_count";
    const size_t length = hz_text_read(path, text, sizeof text);
    const unsigned long most = length > 0 ? strtoul(text, NULL, 10) : USUAL;
    return most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

uint32_t hz_os_pid(void)
{
    return (uint32_t)getpid();
}

uint32_t hz_os_thread(void)
{
    return (uint32_t)syscall(SYS_gettid);
}

/* From getrandom; where a filter of system calls forbids it, from the 16 random bytes that each
 * process gets, and the clock. */
void hz_os_random(void *bytes, size_t count)
{
    uint64_t seed[2] = {0, 0}, *words = bytes;
    if (syscall(SYS_getrandom, bytes, count, 0) == (long)count) return;
    const void *given = (const void *)getauxval(AT_RANDOM);
    if (given != NULL) memcpy(seed, given, sizeof seed);
    seed[0] ^= now_ns(CLOCK_MONOTONIC) * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < count / sizeof(uint64_t); i++) {
        uint64_t mixed = seed[0] += seed[1] | 1;
        mixed = (mixed ^ mixed >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
        mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
        words[i] = mixed ^ mixed >> 33;
    }
}

bool hz_os_is_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

static bool write_all(int fd, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, text, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written;
        length -= (size_t)written;
    }
    return true;
}

/* The state of a thread before hz writes something. */
typedef struct before_write {
    sigset_t blocked, pending; /* its signals */
    int cancellation;          /* whether it may be cancelled */
} before_write;

/* A write that hz makes must not end or stop the program. If a pipe has no reader or a file is at
 * its limit, the write also raises a signal that would end it; a terminal may stop a program that
 * writes in the background; and a thread that is to be cancelled would end there, in the middle of
 * a malloc, or before an abort. */
static void write_begin(before_write *before)
{
    sigset_t raised;
    sigemptyset(&raised);
    sigaddset(&raised, SIGPIPE);
    sigaddset(&raised, SIGXFSZ);
    sigaddset(&raised, SIGTTOU); /* where it is blocked, the terminal takes the text */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before->cancellation);
    sigpending(&before->pending);
    pthread_sigmask(SIG_BLOCK, &raised, &before->blocked);
}

/* Removes the signal that a failed write raised. One that was pending before stays. */
static void signal_remove(int number, const before_write *before)
{
    sigset_t raised;
    const struct timespec at_once = {0, 0};
    if (sigismember(&before->pending, number)) return;
    sigemptyset(&raised);
    sigaddset(&raised, number);
    while (sigtimedwait(&raised, NULL, &at_once) < 0 && errno == EINTR) continue;
}

/* `error` is why the write failed, or 0. */
static void write_end(const before_write *before, int error)
{
    int cancellation;
    if (error == EPIPE) signal_remove(SIGPIPE, before);
    if (error == EFBIG) signal_remove(SIGXFSZ, before);
    pthread_sigmask(SIG_SETMASK, &before->blocked, NULL);
    pthread_setcancelstate(before->cancellation, &cancellation);
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* on every processor, and so is the next */
#define SYS_pidfd_getfd 438
#endif

/* Writes to the program's stderr from a thread that has another table of descriptors: hz-control,
 * or one that it has made. */
static bool write_to_program(const char *text, size_t length)
{
    const int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    const int found = (int)syscall(SYS_pidfd_getfd, process, STDERR_FILENO, 0);
    const bool is_written = found >= 0 && write_all(found, text, length);
    if (found >= 0) (void)syscall(SYS_close, found);
    if (process >= 0) (void)syscall(SYS_close, process);
    return is_written;
}

void hz_os_write_stderr(const char *text, size_t length)
{
    const int saved = errno;
    before_write before;
    write_begin(&before);
    bool is_written = write_all(STDERR_FILENO, text, length);
    if (!is_written && errno == ENOTCONN) is_written = write_to_program(text, length);
    write_end(&before, is_written ? 0 : errno);
    errno = saved;
}

static bool file_write(const char *path, const char *text, size_t length)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const int fd = open(path, flags, 0600);
    if (fd < 0) return false;
    const bool is_written = write_all(fd, text, length);
    const int error = errno;
    const bool is_closed = close(fd) == 0;
    if (!is_written) errno = error;
    return is_written && is_closed;
}

/* Waits for nothing: a pipe must have a reader, and room. */
bool hz_os_write_file(const char *path, const char *text, size_t length)
{
    before_write before;
    write_begin(&before);
    const bool is_written = file_write(path, text, length);
    write_end(&before, is_written ? 0 : errno);
    return is_written;
}

_Noreturn void hz_os_exit(int status)
{
    _exit(status);
}
