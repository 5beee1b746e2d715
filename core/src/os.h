/*
 * What hz asks of the system. All system calls are behind this interface; none of it allocates.
 */
#ifndef HZ_OS_H
#define HZ_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads what the others need of the C library, whose functions may allocate: before all others, and
 * with no lock held. Any number of times. */
void hz_os_start(void);
void hz_os_clock_find(void); /* a part of it */

/* ---- memory; addresses and lengths are multiples of HZ_PAGE_BYTES --------------------------- */

typedef enum hz_os_claimed {
    HZ_OS_CLAIMED,
    HZ_OS_TAKEN,   /* something lies there */
    HZ_OS_REFUSED, /* no memory, or a limit */
} hz_os_claimed;

/* Maps zeroed memory at an address, to be read or to be written; never replaces anything. */
hz_os_claimed hz_os_claim(void *address, size_t bytes, bool is_writable);
void hz_os_unclaim(void *address, size_t bytes);
uintptr_t hz_os_find_addresses(size_t bytes);        /* where they are unmapped now; 0: nowhere */
bool hz_os_is_unmapped(void *address, size_t bytes); /* true where the system does not tell */
uintptr_t hz_os_addresses(void);                     /* how many a process has; a power of two */
bool hz_os_allow_writing(void *address, size_t bytes);
bool hz_os_forbid(void *address, size_t bytes); /* no access, until it is allowed again */
void *hz_os_map(size_t bytes);                  /* zeroed memory; NULL on failure */
/* Memory with a copy of what is at `from`, to be read only; NULL on failure. */
void *hz_os_map_shared(size_t bytes, const void *from);
/* Shows a part of it at another address, too, in the place of what was mapped there. Multiples of
 * the kernel's pages will do. On failure nothing may be mapped there. */
bool hz_os_map_again(void *shared, void *to, size_t bytes);
size_t hz_os_page_bytes(void); /* of the kernel's pages */
/* Gives the memory back: it reads as zero afterwards. Multiples of the kernel's pages will do. */
bool hz_os_purge(void *address, size_t bytes);
/* Moves the pages to another mapping, by the page table: then the first range reads as zero and
 * costs no memory. False, and nothing has changed, where the kernel refuses. */
bool hz_os_move(void *from, void *to, size_t bytes);
/* Whether a range is one mapping, as a move needs it; also false where the kernel does not tell. */
bool hz_os_is_one_mapping(void *address, size_t bytes);
/* As a purge; the pages are mapped anew, so that moved ones join their neighbours again. */
bool hz_os_renew(void *address, size_t bytes);
/* As a purge; the pages need hz_os_allow_writing afterwards. */
bool hz_os_uncommit(void *address, size_t bytes);
bool hz_os_ask_huge_pages(void *address, size_t bytes);
bool hz_os_decline_huge_pages(void *address, size_t bytes);
bool hz_os_populate(void *address, size_t bytes);

/* ---- threads -------------------------------------------------------------------------------- */

void hz_os_sleep_while(_Atomic uint32_t *word, uint32_t value);
void hz_os_sleep_while_ms(_Atomic uint32_t *word, uint32_t value,
                          uint32_t ms); /* at most so long */
void hz_os_wake_one(_Atomic uint32_t *word);
void hz_os_yield(void);
void hz_os_sleep_us(uint32_t us);

/* Tells the CPU that this thread is spinning. `yield` does nothing on most cores of AArch64; `isb`
 * waits for some ten nanoseconds there, as `pause` does on x86. */
static inline void hz_os_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* The processor's own clock, of a frequency that only a measurement tells (os_ticks.c). */
static inline uint64_t hz_os_counter(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now << 6; /* it is slower: 24 MHz to 1 GHz */
#else
    return hz_os_now_ns();
#endif
}

/* ---- the machine and the process ------------------------------------------------------------ */

uint32_t hz_os_now_ms(void);             /* monotonic, coarse, wraps */
uint64_t hz_os_now_ns(void);             /* monotonic; may be a system call */
uint64_t hz_os_ticks(void);              /* the processor's counter, never a system call */
uint32_t hz_os_ticks_of_ms(void);        /* how many a millisecond has, at least 1 */
uint32_t hz_os_ticks_settle(void);       /* measures that now and then; gives hz_os_now_ms */
uint64_t hz_os_memory_bytes(void);       /* physical memory */
bool hz_os_is_commit_strict(void);       /* overcommit_memory=2: writable pages count as used */
uint64_t hz_os_address_space_left(void); /* what RLIMIT_AS leaves; UINT64_MAX without a limit */
uint32_t hz_os_mappings_most(void);      /* how many a process may have */
/* CPUs that may be used, by affinity and cgroup, at least 1; and how much of the memory. */
uint32_t hz_os_allowed(uint64_t *memory_bytes);
/* The CPUs that the process may run on. 65,536 are eight times what a kernel may be built for. */
enum { HZ_OS_CPU_IDS = 1 << 16 };
typedef struct hz_os_cpu_set {
    unsigned long words[HZ_OS_CPU_IDS / (8 * sizeof(unsigned long))];
} hz_os_cpu_set;
bool hz_os_affinity(hz_os_cpu_set *cpus); /* false: the system does not tell */
static inline bool hz_os_has_cpu(const hz_os_cpu_set *cpus, size_t cpu)
{
    const size_t bits = 8 * sizeof cpus->words[0];
    return (cpus->words[cpu / bits] >> cpu % bits & 1) != 0;
}
uint32_t hz_os_nodes(void); /* nodes of which it may use CPUs, 1 to HZ_NODES_MAX; call it first */
uint32_t hz_os_node(void);  /* the node of the CPU that the caller runs on, below that */
uint32_t hz_os_pid(void);
uint32_t hz_os_thread(void);                  /* number of the calling thread */
bool hz_os_has_main(void); /* false once main has ended; the kernel has forgotten its robust locks
                              then. Of musl's main it knows none */
void hz_os_random(void *bytes, size_t count); /* unpredictable bytes */
bool hz_os_is_privileged(void); /* set-uid and the like: the environment may be an attacker's */
void hz_os_write_stderr(const char *text, size_t length);
bool hz_os_write_file(const char *path, const char *text, size_t length);
_Noreturn void hz_os_exit(int status); /* at once, without exit handlers */

#endif
