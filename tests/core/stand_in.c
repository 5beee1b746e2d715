/*
 * Machines that this one is not: a stand-in for the system calls that hz makes, and for the files
 * of /proc and /sys that it reads. The functions of this program take the place of the C library's.
 */
#include "before_syscall.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <hz/hz.h>

#include "internal.h"
#include "os.h"

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct file {
    const char *path;
    const char *text;
} file;

enum { FILES = 8, NODES = 2 };

static const file *files; /* what /proc and /sys have, FILES of them; NULL: what this machine has */
static size_t possible_cpus; /* all of which may be used; 0: as here */
static size_t refused;       /* calls with an address that is no multiple of a page */

/* From the environment, as hz starts before main. */
static size_t from_environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? strtoul(value, NULL, 10) : 0;
}

static size_t page_bytes(void)
{
    const size_t given = from_environment("STAND_IN_PAGE_BYTES");
    return given != 0 ? given : 4096;
}

#define CALL(number, ...) syscall_behind(number, (const long[SYSCALL_WORDS]){__VA_ARGS__})

static int serve(const char *text)
{
    const int fd = (int)CALL(SYS_memfd_create, (long)"file");
    const size_t length = strlen(text);
    if (write(fd, text, length) != (ssize_t)length) return -1;
    (void)lseek(fd, 0, SEEK_SET);
    return fd;
}

/* The node of each thread. */
static _Thread_local unsigned my_node;

#define NODE "/sys/devices/system/node/"

/* With two nodes, of which each has half of 16 CPUs. */
static const char *of_nodes(const char *path)
{
    if (strcmp(path, NODE "has_cpu") == 0) return "0-1\n";
    if (strcmp(path, NODE "node0/cpulist") == 0) return "0-7\n";
    return strcmp(path, NODE "node1/cpulist") == 0 ? "8-15\n" : NULL;
}

int open(const char *path, int flags, ...)
{
    const char *nodes = from_environment("STAND_IN_NODES") != 0 ? of_nodes(path) : NULL;
    if (nodes != NULL) return serve(nodes);
    const int is_strict = from_environment("STAND_IN_STRICT") != 0;
    if (is_strict && strcmp(path, "/proc/sys/vm/overcommit_memory") == 0) return serve("2\n");
    const char *most = getenv("STAND_IN_MAPPINGS");
    if (most != NULL && strcmp(path, "/proc/sys/vm/max_map_count") == 0) return serve(most);
    if (files != NULL && (strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0)) {
        for (const file *this = files; this < files + FILES && this->path != NULL; this ++)
            if (strcmp(this->path, path) == 0) return serve(this->text);
        errno = ENOENT;
        return -1;
    }
    return (int)CALL(SYS_openat, AT_FDCWD, (long)path, flags, 0600);
}

static long syscall_here(long number, const long words[SYSCALL_WORDS])
{
    require(number != SYS_getcpu, "a sandbox may end the program for that");
    if (from_environment("STAND_IN_NODES") != 0) possible_cpus = 16;
    if (number != SYS_sched_getaffinity || possible_cpus == 0) return syscall_behind(number, words);
    if ((size_t)words[1] * 8 < possible_cpus) {
        errno = EINVAL;
        return -1;
    }
    memset((void *)words[2], 0xff, possible_cpus / 8);
    return (long)(possible_cpus / 8);
}

int sched_getcpu(void)
{
    return from_environment("STAND_IN_NODES") != 0 ? (int)(8 * my_node + 3) : 0;
}

static int is_refused(const void *address)
{
    if ((uintptr_t)address % page_bytes() == 0) return 0;
    refused++;
    errno = EINVAL;
    return 1;
}

static size_t whole(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

static void *map_at(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return (void *)CALL(SYS_mmap, (long)address, (long)bytes, protection, flags, fd, offset);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    const size_t page = page_bytes();
    if (page == 4096 || fd >= 0) return map_at(address, bytes, protection, flags, fd, offset);
    if (address != NULL)
        return is_refused(address) ? MAP_FAILED
                                   : map_at(address, whole(bytes), protection, flags, fd, offset);
    char *got = map_at(NULL, whole(bytes) + page, protection, flags, fd, offset);
    if (got == MAP_FAILED) return got;
    char *start = (char *)whole((uintptr_t)got);
    if (start > got) (void)CALL(SYS_munmap, (long)got, start - got);
    (void)CALL(SYS_munmap, (long)(start + whole(bytes)), got + page - start);
    return start;
}

int munmap(void *address, size_t bytes)
{
    if (is_refused(address)) return -1;
    return (int)CALL(SYS_munmap, (long)address, (long)whole(bytes));
}

int mprotect(void *address, size_t bytes, int protection)
{
    if (is_refused(address)) return -1;
    return (int)CALL(SYS_mprotect, (long)address, (long)whole(bytes), protection);
}

long sysconf(int name)
{
    require(name == _SC_PAGESIZE, "what is sysconf(%d) here?", name);
    return (long)page_bytes();
}

int madvise(void *address, size_t bytes, int advice)
{
    if (is_refused(address)) return -1;
    return (int)CALL(SYS_madvise, (long)address, (long)whole(bytes), advice);
}

/* ---- CPUs ------------------------------------------------------------------------------------ */

static void require_cpus(const char *what, const file *all, uint32_t cpus)
{
    possible_cpus = 4096;
    files = all;
    const uint32_t found = hz_os_cpus();
    files = NULL;
    require(found == cpus, "%s: %u CPUs, not %u", what, found, cpus);
}

#define CGROUP "/proc/self/cgroup"
#define MOUNTS "/proc/self/mountinfo"
#define V2_MOUNT                                                                                   \
    "23 1 0:5 / / rw - ext4 /dev/vda rw\n"                                                         \
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

CHECK("more CPUs than a cpu_set_t holds are counted")
{
    require_cpus("no quota", (const file[FILES]){{MOUNTS, ""}}, 4096);
}

CHECK("the least quota on the way up counts")
{
    const file all[FILES] = {
        {CGROUP, "0::/web.slice/web.service/worker\n"},
        {MOUNTS, V2_MOUNT},
        {"/sys/fs/cgroup/web.slice/web.service/worker/cpu.max", "max 100000\n"},
        {"/sys/fs/cgroup/web.slice/web.service/cpu.max", "350000 100000\n"},
        {"/sys/fs/cgroup/web.slice/cpu.max", "150000 100000\n"},
    };
    require_cpus("a slice above a service", all, 2);
}

CHECK("a service of systemd has a quota of its own")
{
    const file all[FILES] = {
        {CGROUP, "0::/system.slice/web.service\n"},
        {MOUNTS, V2_MOUNT},
        {"/sys/fs/cgroup/system.slice/web.service/cpu.max", "50000 100000\n"},
        {"/sys/fs/cgroup/system.slice/cpu.max", "max 100000\n"},
    };
    require_cpus("CPUQuota=50%", all, 1);
}

CHECK("a container sees its quota at the root")
{
    const file own[FILES] = {
        {CGROUP, "0::/\n"}, {MOUNTS, V2_MOUNT}, {"/sys/fs/cgroup/cpu.max", "300000 100000\n"}};
    const file other[FILES] = {{CGROUP, "0::/../outside\n"},
                               {MOUNTS, V2_MOUNT},
                               {"/sys/fs/cgroup/cpu.max", "300000 100000\n"}};
    require_cpus("a namespace of its own", own, 3);
    require_cpus("a cgroup outside of the namespace", other, 3);
}

CHECK("version 1 has quotas, too")
{
    const file all[FILES] = {
        {CGROUP, "5:cpuset:/\n4:cpuacct,cpu:/docker/abc/inner\n1:name=systemd:/x\n"},
        {MOUNTS, "30 23 0:27 /docker/abc /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                 "31 23 0:28 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpuacct,cpu\n"},
        {"/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "-1\n"},
        {"/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "120000\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "20000\n"},
    };
    require_cpus("version 1", all, 6);
}

CHECK("both versions may be there")
{
    const file all[FILES] = {
        {CGROUP, "4:cpu:/a\n0::/b\n"},
        {MOUNTS, "31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
                 "32 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
        {"/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000\n"},
        {"/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"},
    };
    require_cpus("both versions", all, 4);
}

CHECK("long lines among the mounts do not matter")
{
    static char mounts[70000];
    memset(mounts, 'x', 66000);
    snprintf(mounts + 66000, 4000, "\n%s", V2_MOUNT);
    const file all[FILES] = {
        {CGROUP, "0::/a\n"}, {MOUNTS, mounts}, {"/sys/fs/cgroup/a/cpu.max", "700000 100000\n"}};
    require_cpus("a line of 66,000 bytes", all, 7);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static void require_nodes(const char *what, size_t cpus, const file *all, uint32_t nodes)
{
    possible_cpus = cpus;
    files = all;
    const uint32_t found = hz_os_nodes();
    files = NULL;
    require(found == nodes, "%s: %u nodes, not %u", what, found, nodes);
}

CHECK("nodes count whose CPUs may be used")
{
    const file all[FILES] = {
        {NODE "has_cpu", "0-1,3\n"},
        {NODE "node0/cpulist", "0-15,64-79\n"},
        {NODE "node1/cpulist", "16-31,80-95\n"},
        {NODE "node3/cpulist", "32-47\n"},
    };
    require_nodes("all CPUs", 4096, all, 3);
    require_nodes("the first 32 CPUs", 32, all, 2);
    require_nodes("the first 16 CPUs", 16, all, 1);
    require_nodes("one node", 4096, (const file[FILES]){{NODE "has_cpu", "0\n"}}, 1);
    require_nodes("no such directory", 4096, (const file[FILES]){{MOUNTS, ""}}, 1);
    require_nodes("none that says its CPUs", 4096, (const file[FILES]){{NODE "has_cpu", "0-1\n"}},
                  1);
}

/* ---- pages of the kernel --------------------------------------------------------------------- */

static void start(void *subject)
{
    const char *const *words = subject;
    (void)setenv(words[0], words[1], 1);
    if (words[3] != NULL) (void)setenv("HZ_HARDENING", words[3], 1);
    (void)execl("/proc/self/exe", "stand_in", words[2], (char *)NULL);
    _exit(9);
}

static void require_runs(const char *name, const char *value, const char *word, const char *harden)
{
    const char *words[] = {name, value, word, harden};
    ending result;
    run_apart(start, words, 30, &result);
    require(result.signal == 0 && result.status == 0,
            "%s=%s %s: signal %d, status %d, said '%.300s'", name, value, word, result.signal,
            result.status, result.said);
}

CHECK_IN(60, "kernel pages of 16 and 64 KiB will do")
{
    require_runs("STAND_IN_PAGE_BYTES", "16384", "--use", NULL);
    require_runs("STAND_IN_PAGE_BYTES", "65536", "--use", NULL);
    require_runs("STAND_IN_PAGE_BYTES", "65536", "--use", "full");
}

CHECK_IN(60, "memory stays on its node")
{
    require_runs("STAND_IN_NODES", "2", "--nodes", NULL);
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* Bytes of private mappings that may be written. */
static size_t writable_bytes(void)
{
    char line[512], rights[8];
    uintptr_t from, to;
    size_t total = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    require(maps != NULL, "no /proc/self/maps");
    while (fgets(line, sizeof line, maps) != NULL)
        if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) == 3 && rights[1] == 'w')
            total += to - from;
    (void)fclose(maps);
    return total;
}

CHECK_IN(60, "where commit is counted, it goes back")
{
    require_runs("STAND_IN_STRICT", "1", "--commit", NULL);
}

/* Each guarded block is two mappings. */
CHECK_IN(60, "guards leave mappings to the program")
{
    require_runs("STAND_IN_MAPPINGS", "1000", "--map", "full");
}

/* ---- the started programs -------------------------------------------------------------------- */

enum { BLOCKS = 200, LARGE_BYTES = 1 << 20 };

static void use(size_t bytes)
{
    static unsigned char *blocks[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) {
        const size_t size = bytes * (i % 7 + 1) / 4 + 1;
        blocks[i] = hz_calloc(1, size);
        require(blocks[i] != NULL, "no block of %zu bytes", size);
        require(blocks[i][0] == 0 && blocks[i][size - 1] == 0, "a block is not zeroed");
        memset(blocks[i], 1, size);
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = hz_realloc(blocks[i], bytes * (i % 5 + 1));
        require(blocks[i] != NULL && blocks[i][0] == 1, "no larger block");
    }
    for (size_t i = 0; i < BLOCKS; i++) hz_free(blocks[i]);
    (void)hz_trim();
}

static int use_all_sizes(void)
{
    for (size_t bytes = 16; bytes <= LARGE_BYTES; bytes *= 2) use(bytes);
    require(refused == 0, "%zu calls were refused", refused);
    return 0;
}

static int use_and_give_back(void)
{
    const size_t before = writable_bytes();
    for (int round = 0; round < 3; round++) {
        use(LARGE_BYTES);
        use(1000);
    }
    const size_t after = writable_bytes();
    /* Of some 200 MiB. What went back in short parts stays writable. */
    require(after < before + ((size_t)64 << 20), "%zu bytes may be written, before %zu", after,
            before);
    return 0;
}

static int keep_many_large(void)
{
    static void *blocks[1000];
    const size_t before = mapping_count();
    for (size_t i = 0; i < COUNT(blocks); i++) blocks[i] = hz_malloc(LARGE_BYTES);
    require(mapping_count() > before + 500, "%zu mappings: none guarded", mapping_count());
    require(mapping_count() < before + 800, "%zu mappings, before %zu", mapping_count(), before);
    for (size_t i = 0; i < COUNT(blocks); i++) hz_free(blocks[i]);
    (void)hz_trim();
    require(mapping_count() < before + 300, "%zu mappings at last", mapping_count());
    return 0;
}

/* Each thread keeps blocks of many sizes in a table that all threads share, and frees those that it
 * finds there, mostly another thread's. What a thread gets was first touched by one of its node. */
enum { THREADS = 6, TURNS = 8000, SHARED = 512, LARGEST = 1 << 20 };

static void *_Atomic shared[SHARED];
static _Atomic uint8_t first_node[1 << 16]; /* by page of the arena: the node that touched it first,
                                               plus 1 */

static void touch(unsigned char *block, size_t bytes)
{
    uintptr_t from = ((uintptr_t)block - hz_map.base) >> HZ_PAGE_SHIFT;
    const uintptr_t last = ((uintptr_t)block + bytes - 1 - hz_map.base) >> HZ_PAGE_SHIFT;
    require(last < COUNT(first_node), "page %zu is beyond the table", (size_t)last);
    for (; from <= last; from++) {
        uint8_t before = 0;
        if (atomic_compare_exchange_strong(&first_node[from], &before, (uint8_t)(my_node + 1)))
            continue;
        require(before == my_node + 1, "a block of %zu bytes on page %zu is of node %d, not %u",
                bytes, (size_t)from, before - 1, my_node);
    }
    memset(block, 1, bytes);
}

static void *trade(void *number)
{
    uint64_t random = 1 + (uintptr_t)number;
    my_node = (unsigned)((uintptr_t)number % NODES);
    void *first = hz_malloc(LARGEST); /* before the thread has a heap */
    require(first != NULL && hz_heap_mine == &hz_heap_none, "no large block, or a heap");
    touch(first, LARGEST);
    hz_free(first);
    for (size_t i = 0; i < TURNS; i++) {
        const uint64_t drawn = random_next(&random) >> 16;
        const size_t bytes = 1 + (drawn % 256 == 0 ? drawn >> 8 : drawn >> 8 & 1023) % LARGEST;
        unsigned char *block = hz_malloc(bytes);
        require(block != NULL, "no block");
        touch(block, bytes);
        hz_free(atomic_exchange(&shared[random_next(&random) >> 16 & (SHARED - 1)], block));
    }
    return NULL;
}

static int trade_between_nodes(void)
{
    pthread_t threads[THREADS];
    require(hz_set("decay_ms", "60000", NULL, 0) == 0,
            "decay_ms"); /* what is given back has no node */
    require(hz_map.nodes == NODES && hz_map.shards == NODES, "%u nodes, %u shards", hz_map.nodes,
            hz_map.shards);
    for (int generation = 0; generation < 2; generation++) {
        for (uintptr_t i = 0; i < THREADS; i++) threads[i] = thread_start(trade, (void *)(i + 1));
        for (size_t i = 0; i < THREADS; i++) (void)thread_end(threads[i]);
    }
    require(hz_stats_total(HZ_STAT_heaps_adopted) > 0, "no heap had a second thread");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--use") == 0) return use_all_sizes();
    if (argc == 2 && strcmp(argv[1], "--nodes") == 0) return trade_between_nodes();
    if (argc == 2 && strcmp(argv[1], "--commit") == 0) return use_and_give_back();
    if (argc == 2 && strcmp(argv[1], "--map") == 0) return keep_many_large();
    return run_checks(argc, argv);
}
