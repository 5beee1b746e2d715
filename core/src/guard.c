/*
 * Pages that may not be touched, under hardening: for malloc(0), and around spans and large blocks.
 *
 * A guarded run has GUARD_PAGES pages on each side that no access is allowed to. They are a little
 * more than 1 MiB, so that an access up to 1 MiB beyond a block is stopped. They cost addresses and
 * two of the kernel's mappings, of which the program needs some for its threads and files. Once hz
 * has most of them, or the arena has no more addresses, runs get no guards.
 *
 * A large block that is freed may not be touched either while it waits in the quarantine. What
 * waits takes no memory, but addresses, which also count where overcommit_memory is 2: they are
 * bounded.
 */
#include <errno.h>

#include "harden.h"
#include "os.h"

enum {
    GUARD_PAGES = 17, /* 1 MiB, and a page, as blocks begin and end within pages */
    QUARANTINE_RUNS = 64,
    QUARANTINE_BYTES_EACH = 64 << 20, /* a larger block does not wait */
    QUARANTINE_BYTES = 256 << 20,     /* all that wait */
    ZERO_PAGES = 16,                  /* of one area for malloc(0) */
    ZERO_BLOCKS = ZERO_PAGES << HZ_PAGE_GRANULES_SHIFT,
    ZERO_AREAS = 64,
};

/* ---- guarded runs --------------------------------------------------------------------------- */

static size_t run_bytes(const hz_page_info *run)
{
    return (size_t)run->pages << HZ_PAGE_SHIFT;
}

static bool guard(hz_page_info *first, bool is_on)
{
    const size_t bytes = (size_t)GUARD_PAGES << HZ_PAGE_SHIFT;
    void *address = hz_info_address(first);
    if (!is_on) return hz_os_allow_writing(address, bytes);
    (void)hz_os_purge(address, bytes); /* else its pages would stay resident */
    return hz_os_forbid(address, bytes);
}

static _Atomic uint32_t guarded; /* runs between guards */

/* Whether there may be one more. Each costs two mappings; the program keeps a quarter of all. */
static bool may_guard(void)
{
    static _Atomic uint32_t most;
    if (hz_atomic_peek(&most) == 0) hz_atomic_poke(&most, hz_os_mappings_most() / 8 * 3);
    return hz_atomic_peek(&guarded) < hz_atomic_peek(&most);
}

/* To the page pool the run and its guards are one run, `whole`. If the second guard fails, the
 * first still helps. */
static hz_page_info *guard_both_sides(hz_page_info *whole, size_t pages)
{
    hz_page_info *run = whole + GUARD_PAGES;
    if (!guard(whole, true)) return NULL;
    (void)guard(run + pages, true);
    run->pages = (uint32_t)pages;
    run->state = HZ_RUN_GUARDED;
    hz_atomic_add(&guarded, 1);
    return run;
}

hz_page_info *hz_guard_pages_alloc(size_t pages, size_t align, uint32_t node, bool *zeroed)
{
    if (hz_is_fenced() && align == 1 && may_guard()) {
        hz_page_info *whole = hz_pages_alloc(pages + 2 * (size_t)GUARD_PAGES, 1, node, zeroed);
        hz_page_info *run = whole != NULL ? guard_both_sides(whole, pages) : NULL;
        if (run != NULL) return run;
        if (whole != NULL) hz_pages_free(whole);
    }
    return hz_pages_alloc(pages, align, node, zeroed);
}

/* Removes the guards. If possible, the whole run is mapped anew, so that the kernel joins it with
 * its neighbours; else it would keep three mappings for ever. */
static bool unguard(hz_page_info *whole, const hz_page_info *run, bool *is_clean)
{
    *is_clean = !hz_os_is_commit_strict() && hz_os_renew(hz_info_address(whole), run_bytes(whole));
    if (*is_clean) {
        hz_arena_advise(hz_info_address(whole), run_bytes(whole));
        return true;
    }
    *is_clean = hz_os_purge(hz_info_address(whole), run_bytes(whole));
    return guard(whole, false) && guard(whole + GUARD_PAGES + run->pages, false);
}

/* If the kernel refuses to remove the guards, which may split a mapping, the run is never used
 * again. */
static void guarded_free(hz_page_info *run)
{
    bool is_clean;
    hz_page_info *whole = run - GUARD_PAGES;
    if (!unguard(whole, run, &is_clean)) return;
    run->state = HZ_RUN_NONE;
    hz_atomic_add(&guarded, -1U);
    if (is_clean)
        hz_pages_free_clean(whole);
    else
        hz_pages_free(whole);
}

void hz_guard_pages_free(hz_page_info *run)
{
    if (run->state == HZ_RUN_GUARDED)
        guarded_free(run);
    else
        hz_pages_free(run);
}

/* ---- large blocks under `full` -------------------------------------------------------------- */

/* A ring of blocks that wait. The counters only rise: what waits is between them. */
static struct {
    hz_lock lock; /* guards the rest */
    hz_page_info *runs[QUARANTINE_RUNS];
    uint32_t come, gone; /* how many have come, and how many have gone again */
    size_t bytes;        /* of those that wait */
} freed;

_Static_assert((QUARANTINE_RUNS & (QUARANTINE_RUNS - 1)) == 0, "the counters may wrap around");
_Static_assert(QUARANTINE_BYTES_EACH <= QUARANTINE_BYTES, "each block has room once others went");

void *hz_guard_alloc(size_t size, size_t align)
{
    bool zeroed = false;
    void *block = hz_large_alloc_retrying(size + HZ_EDGE_BYTES, align, &zeroed);
    if (block != NULL && !zeroed) memset(block, 0, size);
    return block;
}

void hz_guard_fence(void *block, size_t bytes)
{
    const size_t size = bytes - HZ_EDGE_BYTES;
    memset((unsigned char *)block + size, hz_fence_byte(HZ_CLASS_LARGE), HZ_EDGE_BYTES);
    hz_info_at(block)->asked_bytes = size;
}

size_t hz_guard_asked(const void *block)
{
    return hz_info_at(block)->asked_bytes;
}

/* Puts a block into the quarantine. If that has no room, the result is the oldest one, which goes
 * instead, and NULL otherwise. */
static hz_page_info *run_put_or_pop(hz_page_info *run)
{
    hz_page_info *oldest = NULL;
    hz_lock_take(&freed.lock);
    const bool is_full = freed.come - freed.gone == QUARANTINE_RUNS ||
                         freed.bytes + run_bytes(run) > QUARANTINE_BYTES;
    if (is_full) {
        oldest = freed.runs[freed.gone % QUARANTINE_RUNS];
        freed.bytes -= run_bytes(oldest);
        hz_plain_put(&freed.gone, freed.gone + 1);
    } else {
        freed.runs[freed.come % QUARANTINE_RUNS] = run;
        freed.bytes += run_bytes(run);
        hz_plain_put(&freed.come, freed.come + 1);
    }
    hz_lock_release(&freed.lock);
    return oldest;
}

/* First in, first out: an access to one of the last QUARANTINE_RUNS freed blocks ends the program,
 * if they have QUARANTINE_BYTES at most. */
static void run_quarantine(hz_page_info *run)
{
    hz_page_info *oldest;
    while ((oldest = run_put_or_pop(run)) != NULL)
        if (hz_os_allow_writing(hz_info_address(oldest), run_bytes(oldest)))
            hz_guard_pages_free(oldest);
}

static bool is_large_end_whole(const void *block)
{
    const unsigned char *end = (const unsigned char *)block + hz_info_at(block)->asked_bytes;
    return hz_is_all(end, HZ_EDGE_BYTES, hz_fence_byte(HZ_CLASS_LARGE));
}

bool hz_guard_is_whole(const void *block)
{
    hz_lock_take(&freed.lock);
    const bool is_whole = hz_class_at(block) != HZ_CLASS_LARGE || is_large_end_whole(block);
    hz_lock_release(&freed.lock);
    return is_whole;
}

/* Makes the block a free one, so that no other thread checks its end from now on. */
static void disown(void *block)
{
    hz_lock_take(&freed.lock);
    const bool was_live = hz_entry_take(hz_entry_at(block));
    hz_lock_release(&freed.lock);
    if (!was_live) hz_die("a block was freed twice", block);
}

void hz_guard_free(void *block)
{
    hz_page_info *run = hz_info_at(block);
    if (!is_large_end_whole(block)) hz_die("a block was written to beyond its end", block);
    disown(block);
    const bool may_wait = run_bytes(run) <= QUARANTINE_BYTES_EACH;
    if (may_wait) (void)hz_os_purge(block, run_bytes(run)); /* refused, if it is locked */
    if (may_wait && hz_os_forbid(block, run_bytes(run)))
        run_quarantine(run);
    else
        hz_guard_pages_free(run);
}

/* ---- malloc(0) ------------------------------------------------------------------------------ */

typedef struct zero_area {
    unsigned char *start; /* pages that may not be touched; NULL: not made yet */
    uint64_t *taken;      /* a bit per block */
    uint32_t count;       /* bits that are set */
    uint32_t next_word;   /* where the next search starts */
} zero_area;

static struct {
    hz_lock lock; /* guards the rest */
    zero_area areas[ZERO_AREAS];
} zeros;

enum { ZERO_WORDS = ZERO_BLOCKS / HZ_WORD_BITS };
_Static_assert(ZERO_BLOCKS % HZ_WORD_BITS == 0, "the bits fill their words");

/* The bits stay where the pages fail: they are never given back, and the next try needs them. */
static bool area_make(zero_area *area)
{
    if (area->taken == NULL) area->taken = hz_meta_alloc(ZERO_WORDS * sizeof(uint64_t));
    hz_page_info *run = area->taken != NULL ? hz_pages_alloc(ZERO_PAGES, 1, 0, NULL) : NULL;
    if (run == NULL) return false;
    if (!hz_os_forbid(hz_info_address(run), run_bytes(run))) {
        hz_pages_free(run);
        return false;
    }
    hz_plain_put(&area->start, hz_info_address(run));
    return true;
}

static void *area_take(zero_area *area)
{
    while (~area->taken[area->next_word] == 0) area->next_word = (area->next_word + 1) % ZERO_WORDS;
    const unsigned bit = (unsigned)__builtin_ctzll(~area->taken[area->next_word]);
    area->taken[area->next_word] |= UINT64_C(1) << bit;
    area->count++;
    const size_t block = (size_t)area->next_word * HZ_WORD_BITS + bit;
    return area->start + (block << HZ_GRANULE_SHIFT);
}

static zero_area *area_of(const void *block)
{
    for (zero_area *area = zeros.areas; area < zeros.areas + ZERO_AREAS; area++) {
        const size_t offset = (uintptr_t)block - (uintptr_t)area->start;
        if (area->start != NULL && offset < (size_t)ZERO_BLOCKS << HZ_GRANULE_SHIFT) return area;
    }
    return NULL;
}

/* The word of a block's bit, and the bit; NULL if `block` is no malloc(0). */
static uint64_t *zero_word(const void *block, uint64_t *bit)
{
    const zero_area *area = area_of(block);
    if (area == NULL || (uintptr_t)block % HZ_GRANULE_BYTES != 0) return NULL;
    const size_t at = ((uintptr_t)block - (uintptr_t)area->start) >> HZ_GRANULE_SHIFT;
    *bit = UINT64_C(1) << at % HZ_WORD_BITS;
    return &area->taken[at / HZ_WORD_BITS];
}

void *hz_guard_zero(void)
{
    void *block = NULL;
    hz_lock_take(&zeros.lock);
    for (zero_area *area = zeros.areas; area < zeros.areas + ZERO_AREAS; area++) {
        if (area->start == NULL && !area_make(area)) break;
        if (area->count == ZERO_BLOCKS) continue;
        block = area_take(area);
        break;
    }
    hz_lock_release(&zeros.lock);
    return block;
}

bool hz_guard_is_zero(const void *block)
{
    uint64_t bit;
    hz_lock_take(&zeros.lock);
    const uint64_t *word = zero_word(block, &bit);
    const bool is_taken = word != NULL && (*word & bit) != 0;
    hz_lock_release(&zeros.lock);
    return is_taken;
}

bool hz_guard_zero_free(void *block)
{
    uint64_t bit;
    hz_lock_take(&zeros.lock);
    uint64_t *word = zero_word(block, &bit);
    const bool was_taken = word != NULL && (*word & bit) != 0;
    if (was_taken) {
        *word &= ~bit;
        area_of(block)->count--;
    }
    hz_lock_release(&zeros.lock);
    return was_taken;
}

/* ---- fork ----------------------------------------------------------------------------------- */

static uint32_t count_taken(const zero_area *area)
{
    uint32_t count = 0;
    for (size_t i = 0; i < ZERO_WORDS; i++) count += (uint32_t)__builtin_popcountll(area->taken[i]);
    return count;
}

static size_t count_bytes_freed(void)
{
    size_t bytes = 0;
    for (uint32_t i = freed.gone; i != freed.come; i++)
        bytes += run_bytes(freed.runs[i % QUARANTINE_RUNS]);
    return bytes;
}

/* Another thread may have been inside either part at the fork. */
void hz_guard_after_fork(void)
{
    if (hz_lock_inherit(&freed.lock)) freed.bytes = count_bytes_freed();
    if (!hz_lock_inherit(&zeros.lock)) return;
    for (zero_area *area = zeros.areas; area < zeros.areas + ZERO_AREAS; area++) {
        if (area->start != NULL) area->count = count_taken(area);
    }
}
