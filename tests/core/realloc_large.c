/*
 * A large block that grows is moved by the kernel's page table, not copied; contents, neighbours,
 * clean pages and the number of the kernel's mappings stay as they should be.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)
enum { SLOTS = 12, STEPS = 1500, WORD = sizeof(uint64_t) };

typedef struct slot {
    unsigned char *block; /* NULL: none */
    size_t size;
    uint64_t pattern;
} slot;

/* ---- patterns: a word in each page of a block, at the end and at odd places ------------------ */

static uint64_t word_at(uint64_t pattern, size_t place)
{
    return (pattern + place) * UINT64_C(0x9e3779b97f4a7c15);
}

static size_t next_place(size_t place)
{
    return place + 4093; /* a prime, so that all offsets in a page take their turn */
}

static void paint(const slot *painted, size_t from)
{
    for (size_t at = 0; at + WORD <= painted->size; at = next_place(at)) {
        const uint64_t word = word_at(painted->pattern, at);
        if (at >= from) memcpy(painted->block + at, &word, WORD);
    }
}

static void require_painted(const slot *painted, size_t size)
{
    for (size_t at = 0; at + WORD <= size; at = next_place(at)) {
        uint64_t word;
        memcpy(&word, painted->block + at, WORD);
        require(word == word_at(painted->pattern, at), "byte %zu of %zu has changed", at, size);
    }
}

static void require_zero(const unsigned char *block, size_t size)
{
    for (size_t at = 0; at < size; at += 509)
        require(block[at] == 0, "calloc: byte %zu of %zu is not zero", at, size);
}

/* ---- any order ------------------------------------------------------------------------------ */

static void resize(slot *chosen, size_t size)
{
    const size_t kept = size < chosen->size ? size : chosen->size;
    unsigned char *moved = realloc(chosen->block, size);
    require(moved != NULL, "realloc gave NULL");
    chosen->block = moved;
    require_painted(chosen, kept);
    chosen->size = size;
    paint(chosen, kept > 5000 ? kept - 5000 : 0);
}

static void replace(slot *chosen, size_t size, int is_zeroed)
{
    if (chosen->block != NULL) require_painted(chosen, chosen->size);
    free(chosen->block);
    chosen->block = is_zeroed ? calloc(1, size) : malloc(size);
    require(chosen->block != NULL, "no memory");
    if (is_zeroed) require_zero(chosen->block, size);
    chosen->size = size;
    paint(chosen, 0);
}

static void walk(size_t steps)
{
    static slot slots[SLOTS];
    uint64_t state = seed_chosen(11);
    for (size_t i = 0; i < steps; i++) {
        const uint64_t drawn = random_next(&state);
        slot *chosen = &slots[drawn % SLOTS];
        const size_t size = 1 + (drawn >> 16) % (drawn % 7 == 0 ? 16 * MIB : 3 * MIB);
        chosen->pattern = chosen->block == NULL ? drawn : chosen->pattern;
        if (chosen->block == NULL || (drawn >> 8) % 4 == 0)
            replace(chosen, size, (drawn >> 10) % 2);
        else
            resize(chosen, (drawn >> 8) % 4 == 1 ? size : chosen->size + size / 4 + 1);
        if (chosen->size > 24 * MIB) replace(chosen, 1000, 0);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        if (slots[i].block != NULL) require_painted(&slots[i], slots[i].size);
        free(slots[i].block);
    }
}

CHECK_IN(60, "contents survive every move, and calloc gives zeros beside them")
{
    walk(STEPS);
    require(hz_counter("large_moved") > 0, "no block was moved");
}

/* ---- memory --------------------------------------------------------------------------------- */

static size_t peak_bytes(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss << 10;
}

CHECK("a block that grows to twice its size takes no more memory than it has")
{
    const size_t before = peak_bytes(), size = 64 * MIB;
    slot grown = {malloc(size), size, 3};
    void *pin = malloc(MIB);
    memset(grown.block, 1, size);
    paint(&grown, 0);
    resize(&grown, 2 * size);
    memset(grown.block + size, 1, size);
    require(peak_bytes() < before + 2 * size + 8 * MIB, "a peak of %zu for %zu bytes",
            peak_bytes() - before, 2 * size);
    free(pin);
    free(grown.block);
}

CHECK("a block that shrinks gives pages back")
{
    slot shrunk = {malloc(64 * MIB), 64 * MIB, 4};
    memset(shrunk.block, 1, shrunk.size);
    paint(&shrunk, 0);
    resize(&shrunk, 48 * MIB);
    require(malloc_usable_size(shrunk.block) < 49 * MIB, "nothing came back");
    const size_t before = resident_bytes();
    malloc_trim(0);
    require(resident_bytes() < 52 * MIB, "%zu, then %zu resident", before, resident_bytes());
    require_painted(&shrunk, shrunk.size);
}

/* Each block stands in the way of the one before. */
static void grow_by_turns(slot *slots, size_t count, size_t most)
{
    for (size_t size = MIB; size < most; size = size * 3 / 2) {
        for (size_t i = 0; i < count; i++) {
            slots[i].pattern = i;
            resize(&slots[i], size);
        }
    }
}

CHECK_IN(60, "the kernel's mappings do not add up")
{
    enum { BLOCKS = 40 };
    static slot slots[BLOCKS];
    free(malloc(MIB));
    const size_t before = mapping_count();
    for (int round = 0; round < 4; round++) {
        grow_by_turns(slots, BLOCKS, 6 * MIB);
        const size_t now = mapping_count();
        require(now < before + 8 * BLOCKS, "%zu mappings more", now - before);
        for (size_t i = 0; i < BLOCKS; i++) {
            free(slots[i].block);
            slots[i] = (slot){NULL, 0, 0};
        }
    }
    require(hz_counter("large_moved") >= BLOCKS, "few blocks were moved");
    malloc_trim(0);
    require(mapping_count() <= before + 24, "%zu mappings stay", mapping_count() - before);
}

/* ---- when it cannot be ---------------------------------------------------------------------- */

CHECK("a size that cannot be leaves the block as it is")
{
    slot kept = {malloc(5 * MIB), 5 * MIB, 9};
    paint(&kept, 0);
    const size_t sizes[] = {(size_t)1 << 46, PTRDIFF_MAX, SIZE_MAX};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        errno = 0;
        require(realloc(kept.block, sizes[i]) == NULL && errno == ENOMEM, "size %zx", sizes[i]);
        require_painted(&kept, kept.size);
    }
    free(kept.block);
}

static void refuse_mremap(int error)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {COUNT(program), program};
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    require(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0, "seccomp");
}

CHECK_IN(60, "a kernel that does not know such moves makes for copies")
{
    refuse_mremap(EINVAL);
    walk(STEPS / 4);
    require(hz_counter("large_moved") == 0, "a block was moved");
}

CHECK_IN(60, "a kernel that has no memory for a move makes for copies")
{
    refuse_mremap(ENOMEM);
    walk(STEPS / 4);
    require(hz_counter("large_moved") == 0, "a block was moved");
}

/* ---- other owners of the pages -------------------------------------------------------------- */

CHECK_IN(60, "a parent's and a child's block are two")
{
    slot grown = {malloc(8 * MIB), 8 * MIB, 21};
    void *pin = malloc(MIB);
    paint(&grown, 0);
    for (int i = 0; i < 3; i++) {
        int status = -1;
        const pid_t child = fork();
        if (child == 0) {
            slot own = grown;
            resize(&own, 20 * MIB);
            memset(own.block, 0, own.size);
            walk(STEPS / 8);
            _exit(7);
        }
        require(waitpid(child, &status, 0) == child, "waitpid");
        require(WIFEXITED(status) && WEXITSTATUS(status) == 7, "child: %x", (unsigned)status);
        require_painted(&grown, grown.size);
        resize(&grown, grown.size * 2);
    }
    free(pin);
    free(grown.block);
}

CHECK("locked pages keep their contents")
{
    slot grown = {malloc(2 * MIB), 2 * MIB, 33};
    paint(&grown, 0);
    if (mlock(grown.block, grown.size) != 0) return; /* not allowed here */
    void *pin = malloc(MIB);
    resize(&grown, 4 * MIB);
    munlock(grown.block, grown.size);
    free(grown.block);
    free(pin);
    require_zero(calloc(1, 16 * MIB), 16 * MIB);
}

/* What mlockall asked for holds for the range that a block has left, too: it is resident at once.
 */
CHECK("after mlockall what a block has left stays locked")
{
    unsigned char first;
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return; /* not allowed here */
    slot grown = {malloc(2 * MIB), 2 * MIB, 34};
    void *pin = malloc(MIB), *old = grown.block;
    paint(&grown, 0);
    resize(&grown, 4 * MIB);
    require(hz_counter("large_moved") == 1, "the block was not moved");
    require(mincore(old, 1, &first) == 0 && (first & 1) != 0, "what it left is not locked");
    free(pin);
}

/* A part of the block is a mapping of its own. */
CHECK_IN(60, "a block of several mappings keeps its contents")
{
    slot grown = {aligned_alloc(4096, 4 * MIB), 4 * MIB, 35};
    paint(&grown, 0);
    require(madvise(grown.block + MIB, MIB, MADV_DONTFORK) == 0, "madvise: %s", strerror(errno));
    void *pin = malloc(MIB);
    resize(&grown, 8 * MIB);
    resize(&grown, 30 * MIB);
    free(grown.block);
    free(pin);
    require_zero(calloc(1, 30 * MIB), 30 * MIB);
    walk(STEPS / 8);
}
