/*
 * A large block that grows is moved by the kernel's page table, not copied; contents, neighbours,
 * clean pages and the number of the kernel's mappings stay as they should be.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

#define MIB ((size_t)1 << 20)
enum { SLOTS = 12, STEPS = 1500, WORD = sizeof(uint64_t) };
enum { STRIDE = 4093 }; /* a prime, so that all offsets in a page take their turn */

typedef struct slot {
    unsigned char *block; /* NULL: none */
    size_t size;
    uint64_t pattern; /* of a word in each page of the block, at odd places */
} slot;

static uint64_t word_at(const slot *painted, size_t place)
{
    return (painted->pattern + place) * UINT64_C(0x9e3779b97f4a7c15);
}

static void paint(const slot *painted, size_t from)
{
    for (size_t at = 0; at + WORD <= painted->size; at += STRIDE) {
        const uint64_t word = word_at(painted, at);
        if (at >= from) memcpy(painted->block + at, &word, WORD);
    }
}

static void require_painted(const slot *painted, size_t size)
{
    for (size_t at = 0; at + WORD <= size; at += STRIDE) {
        uint64_t word;
        memcpy(&word, painted->block + at, WORD);
        require(word == word_at(painted, at), "byte %zu of %zu has changed", at, size);
    }
}

static unsigned char *zeroed(size_t size)
{
    unsigned char *block = calloc(1, size);
    for (size_t at = 0; at < size; at += 509)
        require(block[at] == 0, "calloc: byte %zu of %zu is not zero", at, size);
    return block;
}

static slot made(size_t size)
{
    const slot fresh = {malloc(size), size, size};
    paint(&fresh, 0);
    return fresh;
}

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

/* ---- any order ------------------------------------------------------------------------------ */

static void replace(slot *chosen, size_t size, bool is_zeroed)
{
    if (chosen->block != NULL) require_painted(chosen, chosen->size);
    free(chosen->block);
    chosen->block = is_zeroed ? zeroed(size) : malloc(size);
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
        if (chosen->size > 24 * MIB) replace(chosen, 1000, false);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        if (slots[i].block != NULL) require_painted(&slots[i], slots[i].size);
        free(slots[i].block);
        slots[i].block = NULL;
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

CHECK("a block that grows to twice its size takes no more memory, and gives it back")
{
    const size_t size = 64 * MIB, before = peak_bytes();
    slot grown = made(size);
    (void)malloc(MIB);
    memset(grown.block, 1, size);
    paint(&grown, 0);
    resize(&grown, 2 * size);
    memset(grown.block + size, 1, size);
    paint(&grown, size);
    require(peak_bytes() < before + 2 * size + 8 * MIB, "a peak of %zu for %zu bytes",
            peak_bytes() - before, 2 * size);
    resize(&grown, 48 * MIB);
    require(malloc_usable_size(grown.block) < 49 * MIB, "nothing came back");
    malloc_trim(0);
    require(resident_bytes() < 52 * MIB, "%zu bytes are resident", resident_bytes());
    require_painted(&grown, grown.size);
}

/* Each block stands in the way of the one before. */
CHECK_IN(60, "the kernel's mappings do not add up")
{
    enum { BLOCKS = 40 };
    static slot slots[BLOCKS];
    free(malloc(MIB));
    const size_t before = mapping_count();
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < BLOCKS; i++) slots[i] = (slot){NULL, 0, i};
        for (size_t size = MIB; size < 6 * MIB; size = size * 3 / 2)
            for (size_t i = 0; i < BLOCKS; i++) resize(&slots[i], size);
        const size_t now = mapping_count();
        require(now < before + 8 * BLOCKS, "%zu mappings more", now - before);
        for (size_t i = 0; i < BLOCKS; i++) free(slots[i].block);
    }
    require(hz_counter("large_moved") >= BLOCKS, "few blocks were moved");
    malloc_trim(0);
    require(mapping_count() <= before + 24, "%zu mappings stay", mapping_count() - before);
}

/* ---- when it cannot be ---------------------------------------------------------------------- */

CHECK("a size that cannot be leaves the block as it is")
{
    const slot kept = made(5 * MIB);
    const size_t sizes[] = {(size_t)1 << 46, PTRDIFF_MAX, SIZE_MAX};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        errno = 0;
        require(realloc(kept.block, sizes[i]) == NULL && errno == ENOMEM, "size %zx", sizes[i]);
        require_painted(&kept, kept.size);
    }
}

static void walk_without_mremap(void *error)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | *(unsigned *)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {COUNT(program), program};
    require(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs: %s", strerror(errno));
    require(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) == 0, "seccomp");
    walk(STEPS / 4);
    require(hz_counter("large_moved") == 0, "a block was moved");
}

CHECK_IN(60, "a kernel that knows no such moves, or has no memory for one, makes for copies")
{
    unsigned errors[] = {EINVAL, ENOMEM};
    for (size_t i = 0; i < COUNT(errors); i++) require_well(walk_without_mremap, &errors[i], 30);
}

/* ---- other owners of the pages -------------------------------------------------------------- */

static slot parents;

static void resize_own(void)
{
    slot own = parents;
    resize(&own, 20 * MIB);
    memset(own.block, 0, own.size);
    walk(STEPS / 8);
}

CHECK_IN(60, "a parent's and a child's block are two")
{
    parents = made(8 * MIB);
    (void)malloc(MIB);
    for (int i = 0; i < 3; i++) {
        require_of_child(resize_own);
        require_painted(&parents, parents.size);
        resize(&parents, parents.size * 2);
    }
}

CHECK("locked pages keep their contents")
{
    slot grown = made(2 * MIB);
    if (mlock(grown.block, grown.size) != 0) return; /* not allowed here */
    (void)malloc(MIB);
    resize(&grown, 4 * MIB);
    munlock(grown.block, grown.size);
    free(grown.block);
    (void)zeroed(16 * MIB);
}

/* What mlockall asked for holds for the range that a block has left, too: it is resident at once.
 */
CHECK("after mlockall what a block has left stays locked")
{
    unsigned char is_resident;
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return; /* not allowed here */
    slot grown = made(2 * MIB);
    (void)malloc(MIB);
    void *old = grown.block;
    resize(&grown, 4 * MIB);
    require(hz_counter("large_moved") == 1, "the block was not moved");
    require(mincore(old, 1, &is_resident) == 0 && (is_resident & 1) != 0, "it is not locked");
}

/* A part of the block is a mapping of its own. */
CHECK_IN(60, "a block of several mappings keeps its contents")
{
    slot grown = {aligned_alloc(4096, 4 * MIB), 4 * MIB, 35};
    paint(&grown, 0);
    require(madvise(grown.block + MIB, MIB, MADV_DONTFORK) == 0, "madvise: %s", strerror(errno));
    (void)malloc(MIB);
    resize(&grown, 8 * MIB);
    resize(&grown, 30 * MIB);
    free(grown.block);
    (void)zeroed(30 * MIB);
    walk(STEPS / 8);
}
