/*
 * The system, on Linux.
 */
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "atomic.h"
#include "os_call.h"
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

/* An address, or below 0 the negative errno. */
static long map_fresh(void *hint, size_t bytes, int protection, int flags)
{
#ifdef __SANITIZE_THREAD__ /* it must see where memory is */
    void *address = mmap(hint, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return address == MAP_FAILED ? -errno : (long)address;
#else
    return HZ_OS_CALL(SYS_mmap, (long)hint, (long)bytes, protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
#endif
}

static void unmap(long address, size_t bytes)
{
    (void)HZ_OS_CALL(SYS_munmap, address, (long)bytes);
}

/* A kernel that does not know MAP_FIXED_NOREPLACE (before 4.17) takes the address for a hint. */
static hz_os_claimed claim(void *address, size_t bytes, int protection)
{
    const long got = map_fresh(address, bytes, protection, MAP_NORESERVE | FIXED_NOREPLACE);
    if (got == (long)address) return HZ_OS_CLAIMED;
    if (got > 0) unmap(got, bytes);
    return got > 0 || got == -EEXIST ? HZ_OS_TAKEN : HZ_OS_REFUSED;
}

hz_os_claimed hz_os_claim(void *address, size_t bytes, bool is_writable)
{
    return claim(address, bytes, is_writable ? PROT_READ | PROT_WRITE : PROT_READ);
}

void hz_os_unclaim(void *address, size_t bytes)
{
    unmap((long)address, bytes);
}

uintptr_t hz_os_find_addresses(size_t bytes)
{
    const long address = map_fresh(NULL, bytes, PROT_NONE, MAP_NORESERVE);
    if (address < 0) return 0;
    unmap(address, bytes);
    return (uintptr_t)address;
}

/* Maps it without access, so that nothing becomes resident under mlockall. */
bool hz_os_is_unmapped(void *address, size_t bytes)
{
    const hz_os_claimed claimed = claim(address, bytes, PROT_NONE);
    if (claimed == HZ_OS_CLAIMED) unmap((long)address, bytes);
    return claimed != HZ_OS_TAKEN;
}

/* Derived from the stack, which the kernel puts at their end (valgrind does not). */
uintptr_t hz_os_addresses(void)
{
    const uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
    const uintptr_t addresses = (uintptr_t)1 << (64 - __builtin_clzl(stack));
    return addresses < ADDRESSES_MIN ? ADDRESSES_MIN : addresses;
}

static bool protect(void *address, size_t bytes, int protection)
{
    return HZ_OS_CALL(SYS_mprotect, (long)address, (long)bytes, protection) == 0;
}

bool hz_os_allow_writing(void *address, size_t bytes)
{
    return protect(address, bytes, PROT_READ | PROT_WRITE);
}

bool hz_os_forbid(void *address, size_t bytes)
{
    return protect(address, bytes, PROT_NONE);
}

void *hz_os_map(size_t bytes)
{
    const long address = map_fresh(NULL, bytes, PROT_READ | PROT_WRITE, 0);
    return address < 0 ? NULL : (void *)address;
}

void *hz_os_map_shared(size_t bytes, const void *from)
{
    const int access = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_ANONYMOUS;
    const long address = HZ_OS_CALL(SYS_mmap, 0, (long)bytes, access, flags, -1, 0);
    if (address < 0) return NULL;
    memcpy((void *)address, from, bytes);
    return protect((void *)address, bytes, PROT_READ) ? (void *)address : NULL;
}

bool hz_os_map_again(void *shared, void *to, size_t bytes)
{
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    return HZ_OS_CALL(SYS_mremap, (long)shared, 0, (long)bytes, flags, (long)to) == (long)to;
}

static _Atomic size_t page_bytes;

size_t hz_os_page_bytes(void)
{
    return hz_atomic_peek(&page_bytes);
}

static bool advise(void *address, size_t bytes, int advice)
{
    return HZ_OS_CALL(SYS_madvise, (long)address, (long)bytes, advice) == 0;
}

bool hz_os_purge(void *address, size_t bytes)
{
    return advise(address, bytes, MADV_DONTNEED);
}

/* A move of more than one mapping fails, and older kernels have unmapped the target by then. So the
 * range is asked to grow in place: if it is one mapping, it lacks room at most. */
bool hz_os_is_one_mapping(void *address, size_t bytes)
{
    const size_t more = hz_os_page_bytes();
    const long grown = HZ_OS_CALL(SYS_mremap, (long)address, (long)bytes, (long)(bytes + more), 0);
    if (grown > 0) unmap((long)address + (long)bytes, more);
    return grown > 0 || grown == -ENOMEM;
}

bool hz_os_move(void *from, void *to, size_t bytes)
{
    static _Atomic bool is_unknown; /* flags: before Linux 5.7, under valgrind */
    const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
    const int hole = MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (hz_atomic_peek(&is_unknown) || hz_os_is_commit_strict()) return false;
    const long moved =
        HZ_OS_CALL(SYS_mremap, (long)from, (long)bytes, (long)bytes, flags, (long)to);
    if (moved == (long)to) return true;
    if (moved == -EINVAL) hz_atomic_poke(&is_unknown, true);
    (void)map_fresh(to, bytes, PROT_READ | PROT_WRITE, hole); /* if the target is gone */
    return false;
}

bool hz_os_renew(void *address, size_t bytes)
{
    const int flags = MAP_NORESERVE | MAP_FIXED;
    return map_fresh(address, bytes, PROT_READ | PROT_WRITE, flags) == (long)address;
}

bool hz_os_uncommit(void *address, size_t bytes)
{
    return map_fresh(address, bytes, PROT_NONE, MAP_NORESERVE | MAP_FIXED) == (long)address;
}

bool hz_os_ask_huge_pages(void *address, size_t bytes)
{
    return advise(address, bytes, MADV_HUGEPAGE);
}

bool hz_os_decline_huge_pages(void *address, size_t bytes)
{
    return advise(address, bytes, MADV_NOHUGEPAGE);
}

bool hz_os_populate(void *address, size_t bytes)
{
    return advise(address, bytes, MADV_POPULATE_WRITE);
}

/* ---- threads -------------------------------------------------------------------------------- */

void hz_os_sleep_while(_Atomic uint32_t *word, uint32_t value)
{
    (void)HZ_OS_CALL(SYS_futex, (long)word, FUTEX_WAIT_HERE, value);
}

static struct timespec span_of_us(uint64_t us)
{
    return (struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
}

void hz_os_sleep_while_ms(_Atomic uint32_t *word, uint32_t value, uint32_t ms)
{
    const struct timespec span = span_of_us((uint64_t)ms * 1000);
    (void)HZ_OS_CALL(SYS_futex, (long)word, FUTEX_WAIT_HERE, value, (long)&span);
}

void hz_os_wake_one(_Atomic uint32_t *word)
{
    (void)HZ_OS_CALL(SYS_futex, (long)word, FUTEX_WAKE_HERE, 1);
}

void hz_os_yield(void)
{
    (void)HZ_OS_CALL(SYS_sched_yield, 0);
}

void hz_os_sleep_us(uint32_t us)
{
    const struct timespec span = span_of_us(us);
    (void)HZ_OS_CALL(SYS_nanosleep, (long)&span);
}

/* ---- the machine and the process ------------------------------------------------------------ */

static _Atomic uintptr_t given_random; /* AT_RANDOM: 16 bytes that each process gets */

void hz_os_start(void)
{
    hz_atomic_poke(&page_bytes, (size_t)sysconf(_SC_PAGESIZE));
    hz_atomic_poke(&given_random, getauxval(AT_RANDOM));
    hz_os_clock_find();
}

uint64_t hz_os_memory_bytes(void)
{
    struct sysinfo info;
    if (HZ_OS_CALL(SYS_sysinfo, (long)&info) != 0) return UINT64_C(1) << 32;
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
    if (HZ_OS_CALL(SYS_prlimit64, 0, RLIMIT_AS, 0, (long)&limit) != 0) return UINT64_MAX;
    if (limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
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
    return (uint32_t)HZ_OS_CALL(SYS_getpid, 0);
}

uint32_t hz_os_thread(void)
{
    return (uint32_t)HZ_OS_CALL(SYS_gettid, 0);
}

bool hz_os_has_main(void)
{
    void *locks;
    size_t bytes;
    return HZ_OS_CALL(SYS_get_robust_list, hz_os_pid(), (long)&locks, (long)&bytes) != 0 ||
           locks != NULL;
}

/* From getrandom; where a filter of system calls forbids it, from the 16 random bytes that each
 * process gets, and the clock. */
void hz_os_random(void *bytes, size_t count)
{
    uint64_t seed[2] = {0, 0}, *words = bytes;
    if (HZ_OS_CALL(SYS_getrandom, (long)bytes, (long)count) == (long)count) return;
    const void *given = (const void *)hz_atomic_peek(&given_random);
    if (given != NULL) memcpy(seed, given, sizeof seed);
    seed[0] ^= hz_os_now_ns() * UINT64_C(0x9e3779b97f4a7c15);
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

/* 0, or the negative errno. */
static long write_all(long fd, const char *text, size_t length)
{
    while (length > 0) {
        const long written = HZ_OS_CALL(SYS_write, fd, (long)text, (long)length);
        if (written == -EINTR) continue;
        if (written <= 0) return written < 0 ? written : -EIO;
        text += written;
        length -= (size_t)written;
    }
    return 0;
}

/* A set of signals, as the kernel has it. */
typedef uint64_t signals;

static signals signal_set(int number)
{
    return (signals)1 << (number - 1);
}

/* The signals of a thread before hz writes something. */
typedef struct before_write {
    signals blocked, pending;
} before_write;

/* A write that hz makes must not end or stop the program. If a pipe has no reader or a file is at
 * its limit, the write also raises a signal that would end it; and a terminal may stop a program
 * that writes in the background. A thread that is to be cancelled does not end here, as this is no
 * function of the C library. */
static void write_begin(before_write *before)
{
    const signals raised = signal_set(SIGPIPE) | signal_set(SIGXFSZ) |
                           signal_set(SIGTTOU); /* where it is blocked, the terminal takes it */
    (void)HZ_OS_CALL(SYS_rt_sigpending, (long)&before->pending, sizeof(signals));
    (void)HZ_OS_CALL(SYS_rt_sigprocmask, SIG_BLOCK, (long)&raised, (long)&before->blocked,
                     sizeof(signals));
}

/* Removes the signal that a failed write raised. One that was pending before stays. */
static void signal_remove(int number, const before_write *before)
{
    const signals raised = signal_set(number);
    const struct timespec at_once = {0, 0};
    if ((before->pending & raised) != 0) return;
    while (HZ_OS_CALL(SYS_rt_sigtimedwait, (long)&raised, 0, (long)&at_once, sizeof(signals)) ==
           -EINTR)
        continue;
}

static void write_end(const before_write *before, long result)
{
    if (result == -EPIPE) signal_remove(SIGPIPE, before);
    if (result == -EFBIG) signal_remove(SIGXFSZ, before);
    (void)HZ_OS_CALL(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before->blocked, 0, sizeof(signals));
}

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* on every processor, and so is the next */
#define SYS_pidfd_getfd 438
#endif

/* Writes to the program's stderr from a thread that has another table of descriptors: hz-control,
 * or one that it has made. */
static long write_to_program(const char *text, size_t length)
{
    const long process = HZ_OS_CALL(SYS_pidfd_open, hz_os_pid(), 0);
    const long found = HZ_OS_CALL(SYS_pidfd_getfd, process, STDERR_FILENO, 0);
    const long result = found >= 0 ? write_all(found, text, length) : found;
    if (found >= 0) (void)HZ_OS_CALL(SYS_close, found);
    if (process >= 0) (void)HZ_OS_CALL(SYS_close, process);
    return result;
}

void hz_os_write_stderr(const char *text, size_t length)
{
    before_write before;
    write_begin(&before);
    long result = write_all(STDERR_FILENO, text, length);
    if (result == -ENOTCONN) result = write_to_program(text, length);
    write_end(&before, result);
}

static long file_write(const char *path, const char *text, size_t length)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const long fd = HZ_OS_CALL(SYS_openat, AT_FDCWD, (long)path, flags, 0600);
    if (fd < 0) return fd;
    const long result = write_all(fd, text, length);
    const long closed = HZ_OS_CALL(SYS_close, fd);
    return result < 0 ? result : closed;
}

/* Waits for nothing: a pipe must have a reader, and room. */
bool hz_os_write_file(const char *path, const char *text, size_t length)
{
    before_write before;
    write_begin(&before);
    const long result = file_write(path, text, length);
    write_end(&before, result);
    return result == 0;
}

_Noreturn void hz_os_exit(int status)
{
    for (;;) (void)HZ_OS_CALL(SYS_exit_group, status);
}
