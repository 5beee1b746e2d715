/*
 * A large block that grows is moved by the kernel's page table, not copied; contents, neighbours,
 * clean pages and the number of the kernel's mappings stay as they should be.
 */
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "sandbox.h"
#include "shadow.h"

#define MIB ((size_t)1 << 20)
enum { SLOTS = 12, STEPS = 1500 };

static shadow made(size_t size)
{
    shadow fresh = {malloc(size), size, size, 0};
    shadow_fill(&fresh);
    return fresh;
}

/* ---- any order ------------------------------------------------------------------------------ */

static void replace(shadow *chosen, uint64_t draw, size_t size)
{
    if (chosen->block != NULL) shadow_release(chosen);
    shadow_take(chosen, draw, size);
}

static void walk(size_t steps)
{
    static shadow slots[SLOTS];
    uint64_t state = seed_chosen(11);
    for (size_t i = 0; i < steps; i++) {
        const uint64_t drawn = random_next(&state);
        shadow *chosen = &slots[drawn % SLOTS];
        const size_t size = 1 + (drawn >> 16) % (drawn % 7 == 0 ? 16 * MIB : 3 * MIB);
        if (chosen->block == NULL || (drawn >> 8) % 4 == 0)
            replace(chosen, drawn >> 10, size);
        else
            shadow_resize(chosen, (drawn >> 8) % 4 == 1 ? size : chosen->size + size / 4 + 1);
        if (chosen->size > 24 * MIB) replace(chosen, drawn, 1000);
    }
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].block != NULL) shadow_release(&slots[i]);
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
    shadow grown = made(size);
    (void)malloc(MIB);
    shadow_resize(&grown, 2 * size);
    require(peak_bytes() < before + 2 * size + 8 * MIB, "a peak of %zu for %zu bytes",
            peak_bytes() - before, 2 * size);
    shadow_resize(&grown, 48 * MIB);
    require(malloc_usable_size(grown.block) < 49 * MIB, "nothing came back");
    malloc_trim(0);
    require(resident_bytes() < 52 * MIB, "%zu bytes are resident", resident_bytes());
    shadow_verify(&grown, grown.size, "after the trim");
}

/* Each block stands in the way of the one before. */
CHECK_IN(60, "the kernel's mappings do not add up")
{
    enum { BLOCKS = 40 };
    shadow slots[BLOCKS];
    free(malloc(MIB));
    const size_t before = mapping_count();
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < BLOCKS; i++) slots[i] = made(MIB);
        for (size_t size = MIB * 3 / 2; size < 6 * MIB; size = size * 3 / 2)
            for (size_t i = 0; i < BLOCKS; i++) shadow_resize(&slots[i], size);
        const size_t now = mapping_count();
        require(now < before + 8 * BLOCKS, "%zu mappings more", now - before);
        for (size_t i = 0; i < BLOCKS; i++) free(slots[i].block);
    }
    require(hz_counter("large_moved") >= BLOCKS, "few blocks were moved");
    malloc_trim(0);
    require(mapping_count() <= before + 24, "%zu mappings stay", mapping_count() - before);
}

/* ---- when it cannot be ---------------------------------------------------------------------- */

static void walk_without_mremap(void *error)
{
    close_sandbox(SYS_mremap, SYS_mremap, SECCOMP_RET_ERRNO | *(unsigned *)error);
    walk(STEPS / 4);
    require(hz_counter("large_moved") == 0, "a block was moved");
}

CHECK_IN(60, "a kernel that knows no such moves, or has no memory for one, makes for copies")
{
    unsigned errors[] = {EINVAL, ENOMEM};
    for (size_t i = 0; i < COUNT(errors); i++) require_well(walk_without_mremap, &errors[i], 30);
}

/* ---- other owners of the pages -------------------------------------------------------------- */

static shadow parents;

static void resize_own(void)
{
    shadow own = parents;
    shadow_resize(&own, 20 * MIB);
    memset(own.block, 0, own.size);
    walk(STEPS / 8);
}

CHECK_IN(60, "a parent's and a child's block are two")
{
    parents = made(8 * MIB);
    (void)malloc(MIB);
    for (int i = 0; i < 3; i++) {
        require_of_child(resize_own);
        shadow_resize(&parents, parents.size * 2);
    }
}

/* What mlockall asked for holds for the range that a block has left, too: it is resident at once.
 */
CHECK("after mlockall what a block has left stays locked")
{
    unsigned char is_resident;
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return; /* not allowed here */
    shadow grown = made(2 * MIB);
    (void)malloc(MIB);
    void *old = grown.block;
    shadow_resize(&grown, 4 * MIB);
    require(hz_counter("large_moved") == 1, "the block was not moved");
    require(mincore(old, 1, &is_resident) == 0 && (is_resident & 1) != 0, "it is not locked");
}

/* A part of the block is a mapping of its own. */
CHECK_IN(60, "a block of several mappings keeps its contents")
{
    shadow grown = {aligned_alloc(4096, 4 * MIB), 4 * MIB, 35, 0};
    shadow_fill(&grown);
    require(madvise(grown.block + MIB, MIB, MADV_DONTFORK) == 0, "madvise: %s", strerror(errno));
    (void)malloc(MIB);
    shadow_resize(&grown, 8 * MIB);
    shadow_resize(&grown, 30 * MIB);
    shadow_release(&grown);
    walk(STEPS / 8);
}
