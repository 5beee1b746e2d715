/*
 * Machines that this one is not: a stand-in for the system calls that hz makes, and for the files
 * of /proc and /sys that it reads.
 */
#include "check.h"
#include "fake_os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hz/hz.h>

#include "internal.h"
#include "os.h"

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct file {
    const char *path, *text;
} file;

enum { FILES = 8, NODES = 2 };

static const file *files; /* what /proc and /sys have, FILES of them; NULL: what this machine has */
static size_t possible_cpus; /* all of which may be used; 0: as here */
static size_t refused;       /* calls with an address that is no multiple of a page */

/* The node of each thread. */
static _Thread_local unsigned my_node;
static size_t node_asks;

/* hz starts before main. */
static bool has_nodes(void)
{
    return getenv("STAND_IN_NODES") != NULL;
}

static size_t page_bytes(void)
{
    return (size_t)number_chosen("STAND_IN_PAGE_BYTES", 4096);
}

#define GROUP "/proc/self/cgroup"
#define V2 "/sys/fs/cgroup/"
#define NODE "/sys/devices/system/node/"
#define CALL(number, ...) os_call_behind(number, (const long[HZ_OS_CALL_WORDS]){__VA_ARGS__})

static const char *text_of(const file *all, const char *path)
{
    for (const file *this = all; this < all + FILES && this->path != NULL; this ++)
        if (strcmp(this->path, path) == 0) return this->text;
    return NULL;
}

static long open_file(const long words[HZ_OS_CALL_WORDS])
{
    /* Two nodes, of which each has half of 16 CPUs. */
    static const file nodes[FILES] = {{NODE "has_cpu", "0-1\n"},
                                      {NODE "node0/cpulist", "0-7\n"},
                                      {NODE "node1/cpulist", "8-15\n"}};
    const char *path = (const char *)words[1], *text = text_of(nodes, path);
    const char *one = getenv("STAND_IN_FILE");
    if (has_nodes() && text != NULL) return os_file(text);
    if (one != NULL && strcmp(path, one) == 0) return os_file(getenv("STAND_IN_TEXT"));
    if (files == NULL) return os_call_behind(SYS_openat, words);
    text = text_of(files, path);
    return text != NULL ? os_file(text) : -ENOENT;
}

static long affinity(const long words[HZ_OS_CALL_WORDS])
{
    if (has_nodes()) possible_cpus = 16;
    if (possible_cpus == 0) return os_call_behind(SYS_sched_getaffinity, words);
    if ((size_t)words[1] * 8 < possible_cpus) return -EINVAL;
    memset((void *)words[2], 0xff, possible_cpus / 8);
    return (long)(possible_cpus / 8);
}

int sched_getcpu(void)
{
    node_asks++;
    return has_nodes() ? (int)(8 * my_node + 3) : 0;
}

long sysconf(int name)
{
    require(name == _SC_PAGESIZE, "what is sysconf(%d) here?", name);
    return (long)page_bytes();
}

static long whole(long bytes)
{
    const long page = (long)page_bytes();
    return (bytes + page - 1) / page * page;
}

/* At a multiple of the machine's pages. */
static long map_anywhere(const long w[HZ_OS_CALL_WORDS])
{
    const long page = (long)page_bytes(), bytes = whole(w[1]);
    const long got = CALL(SYS_mmap, 0, bytes + page, w[2], w[3], w[4], w[5]), start = whole(got);
    if (got < 0) return got;
    if (start > got) (void)CALL(SYS_munmap, got, start - got);
    (void)CALL(SYS_munmap, start + bytes, got + page - start);
    return start;
}

long os_call(long number, const long w[HZ_OS_CALL_WORDS])
{
    require(number != SYS_getcpu, "a sandbox may end the program for that");
    if (number == SYS_openat) return open_file(w);
    if (number == SYS_sched_getaffinity) return affinity(w);
    const bool is_of_memory = number == SYS_mmap || number == SYS_munmap ||
                              number == SYS_mprotect || number == SYS_madvise;
    if (page_bytes() == 4096 || !is_of_memory) return os_call_behind(number, w);
    if (w[0] % (long)page_bytes() != 0) {
        refused++;
        return -EINVAL;
    }
    if (number == SYS_mmap && w[0] == 0) return map_anywhere(w);
    return CALL(number, w[0], whole(w[1]), w[2], w[3], w[4], w[5]);
}

/* ---- CPUs and nodes -------------------------------------------------------------------------- */

static const struct {
    const char *what;
    uint32_t cpus, memory_mib; /* 0: all memory */
    file files[FILES];
} machines[] = {
    {"more CPUs than a cpu_set_t holds, without a quota", 4096, 0, {{GROUP, ""}}},
    {"a slice above a service, whose quota is the least on the way up",
     2,
     1,
     {{GROUP, "0::/web.slice/web.service/worker\n"},
      {V2 "web.slice/web.service/worker/cpu.max", "max 100000\n"},
      {V2 "web.slice/web.service/cpu.max", "350000 100000\n"},
      {V2 "web.slice/web.service/memory.max", "1048576\n"},
      {V2 "web.slice/cpu.max", "150000 100000\n"}}},
    {"a service of systemd with CPUQuota=50%",
     1,
     0,
     {{GROUP, "0::/system.slice/web.service\n"},
      {V2 "system.slice/web.service/cpu.max", "50000 100000\n"},
      {V2 "system.slice/web.service/memory.max", "max\n"}}},
    {"a cgroup outside of the namespace of a container",
     3,
     1,
     {{GROUP, "0::/../outside\n"},
      {V2 "cpu.max", "300000 100000\n"},
      {V2 "memory.max", "1048576\n"}}},
    {"version 1 in a container",
     6,
     0,
     {{GROUP, "5:cpuset:/\n4:memory,cpu:/docker/abc\n1:name=systemd:/x\n"},
      {V2 "memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {V2 "cpu/cpu.cfs_quota_us", "120000\n"},
      {V2 "cpu/cpu.cfs_period_us", "20000\n"}}},
    {"both versions",
     4,
     2,
     {{GROUP, "4:cpu:/a\n3:memory:/c/d\n0::/b\n"},
      {V2 "cpu/cpu.cfs_quota_us", "-1\n"},
      {V2 "cpu/a/cpu.cfs_quota_us", "400000\n"},
      {V2 "cpu/a/cpu.cfs_period_us", "100000\n"},
      {V2 "memory/c/memory.limit_in_bytes", "2097152\n"}}},
};

CHECK("CPUs and memory are what affinity, machine and cgroups allow")
{
    possible_cpus = 4096;
    for (size_t i = 0; i < COUNT(machines); i++) {
        files = machines[i].files;
        uint64_t memory, mib = machines[i].memory_mib;
        const uint32_t cpus = hz_os_allowed(&memory);
        files = NULL;
        require(cpus == machines[i].cpus && memory == (mib > 0 ? mib << 20 : hz_os_memory_bytes()),
                "%s: %u CPUs, %zu bytes", machines[i].what, cpus, (size_t)memory);
    }
}

PROGRAM("--dirty")
{
    uint64_t memory;
    (void)hz_os_allowed(&memory);
    const size_t most = hz_max_dirty_bytes(), share = memory / 16;
    require(most <= share && (most == (size_t)2 << 30 || 2 * most > share), "%zu bytes", most);
}

CHECK("unused memory grows with the CPUs, and stays small in a small cgroup")
{
    require_program("--dirty", 0, "STAND_IN_NODES=2");
    require_program("--dirty", 0, "STAND_IN_TEXT=67108864 STAND_IN_FILE=" V2 "memory.max");
}

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
    const file three[FILES] = {
        {NODE "has_cpu", "0-1,3\n"},
        {NODE "node0/cpulist", "0-15,64-79\n"},
        {NODE "node1/cpulist", "16-31,80-95\n"},
        {NODE "node3/cpulist", "32-47\n"},
    };
    require_nodes("all CPUs", 4096, three, 3);
    require_nodes("the first 32 CPUs", 32, three, 2);
    require_nodes("the first 16 CPUs", 16, three, 1);
    require_nodes("one node", 4096, (const file[FILES]){{NODE "has_cpu", "0\n"}}, 1);
    require_nodes("no such directory", 4096, (const file[FILES]){{GROUP, ""}}, 1);
    require_nodes("none says its CPUs", 4096, (const file[FILES]){{NODE "has_cpu", "0-1\n"}}, 1);
}

/* ---- pages of the kernel, mappings ----------------------------------------------------------- */

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

PROGRAM("--use")
{
    for (size_t bytes = 16; bytes <= LARGE_BYTES; bytes *= 2) use(bytes);
    require(refused == 0, "%zu calls were refused", refused);
}

CHECK_IN(60, "kernel pages of 16 and 64 KiB will do")
{
    require_program("--use", 0, "STAND_IN_PAGE_BYTES=16384");
    require_program("--use", 0, "STAND_IN_PAGE_BYTES=65536");
    require_program("--use", 0, "STAND_IN_PAGE_BYTES=65536 HZ_HARDENING=full");
}

/* Each guarded block is two mappings. */
PROGRAM("--map")
{
    static void *blocks[1000];
    const size_t before = mapping_count();
    for (size_t i = 0; i < COUNT(blocks); i++) blocks[i] = hz_malloc(LARGE_BYTES);
    require(mapping_count() > before + 500, "%zu mappings: none guarded", mapping_count());
    require(mapping_count() < before + 800, "%zu mappings, before %zu", mapping_count(), before);
    for (size_t i = 0; i < COUNT(blocks); i++) hz_free(blocks[i]);
    (void)hz_trim();
    require(mapping_count() < before + 300, "%zu mappings at last", mapping_count());
}

CHECK_IN(60, "guards leave mappings to the program")
{
    require_program("--map", 0,
                    "STAND_IN_FILE=/proc/sys/vm/max_map_count STAND_IN_TEXT=1000 HZ_HARDENING=full");
}

/* ---- memory of nodes ------------------------------------------------------------------------- */

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

/* What is given back has no node. */
PROGRAM("--nodes")
{
    crowd all;
    require(hz_set("decay_ms", "60000", NULL, 0) == 0, "decay_ms");
    require(hz_map.nodes == NODES && hz_map.shards == NODES, "%u nodes, %u shards", hz_map.nodes,
            hz_map.shards);
    for (int generation = 0; generation < 2; generation++) {
        crowd_start(&all, THREADS, trade);
        crowd_end(&all);
    }
    require(hz_stats_total(HZ_STAT_heaps_adopted) > 0, "no heap had a second thread");
}

/* A heap is found, its thread noted on the first node and twice on the other one; a heap is found
 * and its thread noted there. A pause in the last round may add to these six. */
PROGRAM("--pinned")
{
    enum { ASKS_MOST = 12 };
    void *blocks[TURNS];
    blocks[0] = hz_malloc(1);
    my_node = hz_node_of(hz_heap_mine->shard) ^ 1;
    while (hz_stats_total(HZ_STAT_heaps_followed) == 0) {
        for (size_t i = 1; i < TURNS; i++) blocks[i] = hz_malloc(16);
        for (size_t i = 1; i < TURNS; i++) hz_free(blocks[i]);
    }
    require(hz_node_of(hz_heap_mine->shard) == my_node, "it follows to another node");
    require(node_asks <= ASKS_MOST, "the node was asked for %zu times", node_asks);
    hz_free(blocks[0]);
    hz_heap *const heap = hz_heap_mine;
    require(hz_heap_follow() == heap, "a thread that has come home changes its heap");
}

CHECK_IN(60, "a thread that was pinned after its first call gets memory of its new node")
{
    require_program("--pinned", 0, "STAND_IN_NODES=2");
}

CHECK_IN(60, "memory stays on its node")
{
    require_program("--nodes", 0, "STAND_IN_NODES=2");
}
