/*
 * Spans: runs of pages cut into blocks of one class, and bins, the lists of spans with free blocks.
 *
 * A span is cut from its lowest address on, as blocks are asked for; no more than CUT_BYTES ahead
 * are touched. One heap at a time cuts it, by a lease. If several threads took turns, blocks of two
 * threads would share cache lines. A bit of hz_map.free_bits notes that a block is back. An empty
 * span, whose blocks are all back, is kept (up to span_cache spans) or freed.
 */
#include "internal.h"
#include "os.h"

enum {
    WORDS_PER_PAGE = (1 << HZ_PAGE_GRANULES_SHIFT) / HZ_WORD_BITS, /* words of free_bits, */
    BYTES_PER_WORD = HZ_WORD_BITS * HZ_GRANULE_BYTES,             /* and what each is about */
    COLOURS = 16,    /* a first block starts at one of these lines; a span loses half on average */
    COLOUR_STEP = 7, /* so that neighbouring spans take all colours in turn, far apart */
    CUT_BYTES = 16 * 1024,    /* are touched ahead at most, */
    KERNEL_PAGE_BYTES = 4096, /* and at first what lies on the kernel's pages of one block */
    SHORT_BLOCK_BYTES = 2 * KERNEL_PAGE_BYTES, /* of a longer one most pages may be untouched */
};
_Static_assert(HZ_PAGE_BYTES / HZ_CACHE_LINE_BYTES > COLOURS, "first blocks start in first pages");
_Static_assert((COLOURS - 1) % COLOUR_STEP != 0, "a prime step reaches all colours");

#define SHORT_LEAST ((size_t)4 << 20) /* with fewer bytes of short blocks thp=adaptive asks not */

/* Bytes of all blocks cut from spans that still exist. On a line of its own: every cut writes it,
 * and every slow path reads what would lie beside it. */
static struct {
    HZ_ALIGNED_TO_LINE _Atomic size_t of_short; /* of blocks that touch every other page at least */
    _Atomic size_t of_long;
} cuts;

size_t hz_span_cut_bytes(void)
{
    return hz_atomic_peek(&cuts.of_short) + hz_atomic_peek(&cuts.of_long);
}

static void count_cut(uint32_t class_, size_t bytes)
{
    const bool is_short = hz_class_bytes[class_] <= SHORT_BLOCK_BYTES;
    hz_atomic_add(is_short ? &cuts.of_short : &cuts.of_long, bytes);
}

static hz_bin *bin_of(uint32_t shard, uint32_t class_)
{
    return &hz_shards[shard].bins[class_];
}

static uint64_t *page_bits(size_t page)
{
    return hz_map.free_bits + page * WORDS_PER_PAGE;
}

static uint64_t *span_bits(const hz_page_info *span)
{
    return page_bits(hz_info_page(span));
}

hz_page_info *hz_span_of(const void *address)
{
    return &hz_map.infos[hz_info_at(address)->head];
}

void *hz_span_first_block(const void *block)
{
    const hz_page_info *span = hz_span_of(block);
    return (unsigned char *)hz_info_address(span) + span->colour;
}

/* ---- bins ----------------------------------------------------------------------------------- */

static hz_page_info **bin_list(hz_bin *bin, hz_span_listing listing)
{
    return listing == HZ_SPAN_KEPT ? &bin->kept : &bin->spans;
}

static void count_kept(hz_bin *bin, uint32_t by)
{
    hz_atomic_poke(&bin->kept_count, hz_atomic_peek(&bin->kept_count) + by);
}

static void bin_insert(hz_bin *bin, hz_page_info *span, hz_span_listing listing)
{
    hz_info_link(bin_list(bin, listing), span);
    span->listing = (uint8_t)listing;
    if (listing == HZ_SPAN_KEPT) count_kept(bin, 1);
}

static void bin_remove(hz_bin *bin, hz_page_info *span)
{
    if (span->listing == HZ_SPAN_UNLISTED) return;
    hz_info_unlink(bin_list(bin, span->listing), span);
    if (span->listing == HZ_SPAN_KEPT) count_kept(bin, -1U);
    span->listing = HZ_SPAN_UNLISTED;
}

/* Moves a span to the list of its bin where it belongs now. */
static void bin_move(hz_bin *bin, hz_page_info *span, hz_span_listing listing)
{
    if (span->listing == listing) return;
    bin_remove(bin, span);
    if (listing != HZ_SPAN_UNLISTED) bin_insert(bin, span, listing);
}

static bool span_is_empty(const hz_page_info *span)
{
    return span->free_count == span->cut;
}

static bool span_is_used_up(const hz_page_info *span)
{
    return span->free_count == 0 && span->cut == span->capacity;
}

/* ---- making and freeing --------------------------------------------------------------------- */

static size_t span_length(uint32_t class_)
{
    size_t bytes = (size_t)hz_live(span_bytes);
    size_t least = (size_t)hz_class_bytes[class_] * HZ_SPAN_BLOCKS_MIN;
    if (bytes < least) bytes = least;
    return (bytes + HZ_PAGE_BYTES - 1) >> HZ_PAGE_SHIFT;
}

static void span_prefault(const hz_page_info *span, bool zeroed)
{
    size_t bytes = (size_t)span->pages << HZ_PAGE_SHIFT;
    if (zeroed && hz_os_populate(hz_info_address(span), bytes)) {
        hz_count(HZ_STAT_prefaulted_bytes, bytes);
    }
}

/*
 * Bytes before the first block of a span, which no thread touches. Without them the first blocks of
 * all spans would share a few sets of the cache. A sized class has always some, so that hz_class_at
 * rejects the start of a large block that was freed and whose pages serve the span now.
 */
static uint32_t span_colour(uint32_t first_page, uint32_t class_)
{
    if (class_ > HZ_SIZED_CLASSES) return 0; /* its blocks are aligned to their size */
    return (1 + first_page * COLOUR_STEP % (COLOURS - 1)) * HZ_CACHE_LINE_BYTES;
}

/* A span of short blocks gets a part of a huge page, which they fill, where they hold so much that
 * one that is not full yet matters little. Between guard pages there are none. */
static hz_page_info *span_of_huge_page(size_t pages, uint32_t node, uint32_t class_)
{
    const size_t in_use = hz_atomic_peek(&cuts.of_short);
    if (hz_cfg.thp != HZ_THP_ADAPTIVE || hz_class_bytes[class_] > SHORT_BLOCK_BYTES) return NULL;
    if (hz_is_fenced() || in_use < SHORT_LEAST) return NULL;
    return hz_pages_alloc_huge(pages, node, in_use >> HZ_PAGE_SHIFT);
}

/* A span that no bin has yet: its pages have no class, see make_unlocked. */
static hz_page_info *span_make(uint32_t shard, uint32_t class_)
{
    bool zeroed = false;
    size_t pages = span_length(class_);
    const uint32_t node = hz_node_of(shard);
    hz_page_info *span = span_of_huge_page(pages, node, class_);
    if (span == NULL) span = hz_guard_pages_alloc(pages, 1, node, &zeroed);
    if (span == NULL) return NULL;
    uint32_t first = (uint32_t)hz_info_page(span);
    for (size_t i = 0; i < pages; i++) {
        span[i].head = first;
        span[i].colour = i == 0 ? span_colour(first, class_) : 0;
        span[i].shard = (uint8_t)shard;
    }
    span->capacity = (uint32_t)(((pages << HZ_PAGE_SHIFT) - span->colour) / hz_class_bytes[class_]);
    span->cut = span->free_count = span->scan_word = 0;
    span->listing = HZ_SPAN_UNLISTED;
    if (hz_cfg.prefault == HZ_PREFAULT_ON) span_prefault(span, zeroed);
    hz_count(HZ_STAT_spans_made, 1);
    return span;
}

/* Removes the seals of all blocks of a span whose pages are to serve something else. Where a block
 * was freed twice, a second copy of its address may still wait in a magazine, and must not be
 * handed out then. The result is NULL, or a block that had no seal: its second copy was handed out
 * while the first was in the span, so the block is in use. */
static const void *unseal_all(const hz_page_info *span, uint32_t class_)
{
    const size_t bytes = hz_class_bytes[class_];
    const uint64_t key = hz_map.keys[class_];
    const void *unsealed = NULL;
    unsigned char *block = (unsigned char *)hz_info_address(span) + span->colour;
    for (const unsigned char *end = block + span->cut * bytes; block < end; block += bytes) {
        if (HZ_LIKELY(hz_is_sealed(block, key)))
            hz_unseal(block);
        else
            unsealed = block;
    }
    return unsealed;
}

/* Moves an empty span from its bin to the list `dead`. From then on no page of it belongs to this
 * bin. The rest is left to span_destroy, which runs without the lock. */
static void span_bury(hz_bin *bin, hz_page_info *span, hz_page_info **dead)
{
    bin_remove(bin, span);
    (void)hz_plain_swap(&span->class_, (uint8_t)HZ_CLASS_NONE); /* from now on it is no span */
    for (size_t i = 0; i < span->pages; i++) {
        span[i].class_ = HZ_CLASS_NONE;
        hz_entry_clear(hz_entry_at(hz_info_address(span + i)));
    }
    span->next = *dead;
    *dead = span;
}

/* Frees the pages of a span, unless a block is in use: then they are never used again. */
static void span_destroy(hz_page_info *span, uint32_t class_)
{
    const void *unsealed = unseal_all(span, class_);
    if (HZ_UNLIKELY(unsealed != NULL)) {
        hz_leave_out(unsealed);
        return;
    }
    memset(span_bits(span), 0, (size_t)span->pages * WORDS_PER_PAGE * sizeof(uint64_t));
    count_cut(class_, -((size_t)span->cut * hz_class_bytes[class_]));
    hz_count(HZ_STAT_spans_freed, 1);
    if (hz_is_fenced()) hz_harden_span_goes();
    hz_guard_pages_free(span);
}

static void destroy_all(hz_page_info *dead, uint32_t class_)
{
    for (hz_page_info *next; dead != NULL; dead = next) {
        next = dead->next;
        span_destroy(dead, class_);
    }
}

/* ---- taking blocks -------------------------------------------------------------------------- */

/* Lends the uncut end of a span. */
static void span_lend(hz_page_info *span, hz_lease *lease)
{
    size_t bytes = hz_class_bytes[span->class_];
    unsigned char *blocks = hz_info_address(span);
    lease->first = blocks + span->colour + span->cut * bytes;
    lease->blocks = span->capacity - span->cut;
    span->cut = span->capacity;
}

static void span_take_back(hz_page_info *span, hz_lease *lease)
{
    span->cut -= lease->blocks;
    lease->blocks = 0;
}

/* Notes that the blocks in [first, end) were cut: from now on they may be freed. */
static void note_cut(uint32_t class_, const unsigned char *first, const unsigned char *end)
{
    const size_t page = hz_page_of(first);
    const uint64_t step = hz_class_step(class_, hz_map.infos[page].shard);
    const unsigned char *last = end - hz_class_bytes[class_];
    count_cut(class_, (size_t)(end - first));
    for (size_t i = page; i <= hz_page_of(end - 1); i++)
        hz_entry_set(hz_entry_at(hz_page_address(i)), step, last);
}

/* How many bytes a cut may touch. It touches each block, to seal it: so it takes those that begin
 * on the kernel's pages which the first one lies on, and more, up to CUT_BYTES, as the span fills:
 * then the class is in use. */
static size_t bytes_to_touch(const unsigned char *first, size_t bytes)
{
    const unsigned char *span = hz_info_address(hz_span_of(first));
    const size_t before = (size_t)(first - span);
    const size_t end = (before + bytes + KERNEL_PAGE_BYTES - 1) & -(size_t)KERNEL_PAGE_BYTES;
    const size_t ahead = before < CUT_BYTES ? before : CUT_BYTES;
    return end - before > ahead ? end - before : ahead;
}

/* Seals blocks that lie side by side, and writes them to `out` from its end: the last one, which is
 * popped first, has the lowest address. */
static void seal_row(unsigned char *block, uint32_t class_, void **out, size_t count)
{
    const uint64_t key = hz_map.keys[class_];
    const size_t bytes = hz_class_bytes[class_];
    for (void **at = out + count; at > out; block += bytes) {
        hz_seal(block, key);
        *--at = block;
    }
}

size_t hz_span_cut(hz_lease *lease, uint32_t class_, void **out, size_t want)
{
    size_t bytes = hz_class_bytes[class_];
    size_t most = lease->blocks > 0 ? (bytes_to_touch(lease->first, bytes) + bytes - 1) / bytes : 0;
    if (most > lease->blocks) most = lease->blocks;
    if (want > most) want = most;
    if (hz_is_fenced()) {
        for (size_t i = 0; i < want; i++) hz_harden_cut(lease->first + i * bytes, class_);
    }
    seal_row(lease->first, class_, out, want);
    if (want > 0) note_cut(class_, lease->first, lease->first + want * bytes);
    lease->first += want * bytes;
    lease->blocks -= (uint32_t)want;
    hz_count(HZ_STAT_blocks_carved, want);
    return want;
}

static size_t span_cut_at_once(hz_page_info *span, void **out, size_t want)
{
    hz_lease lease;
    span_lend(span, &lease);
    size_t got = hz_span_cut(&lease, span->class_, out, want);
    span_take_back(span, &lease);
    return got;
}

/* Takes up to `want` blocks that are back in the span. */
static size_t span_reuse(hz_page_info *span, void **out, size_t want)
{
    uint64_t *const bits = span_bits(span);
    if (want > span->free_count) want = span->free_count;
    size_t word = span->scan_word;
    void **at = out + want;
    while (at > out) {
        uint64_t left = bits[word];
        unsigned char *const base =
            (unsigned char *)hz_info_address(span) + word * BYTES_PER_WORD;
        for (; left != 0 && at > out; left &= left - 1)
            *--at = base + (size_t)__builtin_ctzll(left) * HZ_GRANULE_BYTES;
        bits[word] = left;
        word += left == 0;
    }
    span->scan_word = (uint32_t)word;
    span->free_count -= (uint32_t)want;
    hz_count(HZ_STAT_blocks_reused, want);
    return want;
}

static size_t span_give_out(hz_bin *bin, hz_page_info *span, void **out, size_t want,
                            hz_lease *lease)
{
    size_t got = span_reuse(span, out, want);
    if (got == 0 && lease != NULL)
        span_lend(span, lease);
    else if (got < want && lease == NULL)
        got += span_cut_at_once(span, out + got, want - got);
    bin_move(bin, span, span_is_used_up(span) ? HZ_SPAN_UNLISTED : HZ_SPAN_LISTED);
    return got;
}

/* Without the bin's lock, as the system may have to be asked for memory. The pages get their class
 * under it: a block that was freed twice may be coming back to the bin, from when they were another
 * span. */
static hz_page_info *make_unlocked(hz_bin *bin, uint32_t shard, uint32_t class_)
{
    hz_lock_release(&bin->lock);
    hz_page_info *span = span_make(shard, class_);
    hz_lock_take(&bin->lock);
    if (span == NULL) return NULL;
    for (size_t i = span->pages; i > 1; i--) span[i - 1].class_ = (uint8_t)class_;
    hz_plain_put(&span->class_, (uint8_t)class_); /* from now on it is a span */
    return span;
}

size_t hz_span_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease)
{
    hz_bin *bin = bin_of(shard, class_);
    size_t got = 0;
    hz_lock_take(&bin->lock);
    while (got < want) {
        /* A part is enough: a new span or a lease is needed only when there is nothing. */
        bool is_needed = got == 0 && (lease == NULL || lease->blocks == 0);
        hz_page_info *span = bin->spans != NULL ? bin->spans : bin->kept;
        if (span == NULL && is_needed) span = make_unlocked(bin, shard, class_);
        if (span == NULL || (lease != NULL && !is_needed && span->free_count == 0)) break;
        size_t part = span_give_out(bin, span, out + got, want - got, lease);
        if (part == 0) break;
        got += part;
    }
    hz_lock_release(&bin->lock);
    return got;
}

/* ---- giving blocks back --------------------------------------------------------------------- */

/* Puts a span that got blocks back into the right list, or among the dead. */
static void span_settle(hz_bin *bin, hz_page_info *span, hz_page_info **dead)
{
    if (!span_is_empty(span)) {
        bin_move(bin, span, HZ_SPAN_LISTED);
    } else if (hz_atomic_peek(&bin->kept_count) < (uint32_t)hz_live(span_cache)) {
        bin_move(bin, span, HZ_SPAN_KEPT);
        hz_count(HZ_STAT_spans_kept, 1);
    } else {
        span_bury(bin, span, dead);
    }
}

/* Whether a block lies in a span of this bin, whose lock is held. If the block was freed twice, its
 * page may serve another bin by now, which may be changing the page. The result is right even so,
 * as no page comes to this bin or leaves it while the lock is held. */
static bool is_of_bin(uint32_t shard, uint32_t class_, const void *block)
{
    return hz_class_at(block) == class_ && hz_info_at(block)->shard == shard;
}

/* Marks blocks as back, from end[left] on, as long as they lie within `room` bytes of the first
 * block of a page; `left` is below 0. Returns it for the first one that does not, or that is back
 * already: 0 if none is. `words` would be the bits of the address 0, so that an address gives its
 * word without a subtraction; `lowest` becomes the lowest word that was changed. No block is read:
 * one that was freed twice is noticed here if both copies come back; else its second copy lacks the
 * seal when an allocation meets it, or when its span is given up (unseal_all). */
HZ_FAST ptrdiff_t mark_back(uintptr_t first, size_t room, uint64_t *words, void *const *end,
                            ptrdiff_t left, uintptr_t *lowest)
{
    uintptr_t number = (uintptr_t)end[left] / BYTES_PER_WORD;
    uint64_t marked = words[number]; /* written when another word follows */
    *lowest = number;
    do {
        const uintptr_t block = (uintptr_t)end[left];
        if (block - first >= room) break; /* on another page, or before all blocks */
        if (block / BYTES_PER_WORD != number) {
            words[number] = marked;
            number = block / BYTES_PER_WORD;
            marked = words[number];
            if (number < *lowest) *lowest = number;
        }
        const uint64_t bit = UINT64_C(1) << block / HZ_GRANULE_BYTES % HZ_WORD_BITS;
        if (HZ_UNLIKELY((marked & bit) != 0)) break;
        marked |= bit;
    } while (++left != 0);
    words[number] = marked;
    return left;
}

void hz_span_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count)
{
    hz_bin *bin = bin_of(shard, class_);
    hz_page_info *dead = NULL;
    void *const *const end = blocks + count;
    ptrdiff_t left = -(ptrdiff_t)count; /* one register is place and condition */
    const uintptr_t base = hz_map.base, first_word = base / BYTES_PER_WORD;
    uint64_t *const words =
        (uint64_t *)((uintptr_t)hz_map.free_bits - first_word * sizeof(uint64_t));
    hz_lock_take(&bin->lock);
    while (left != 0) {
        const size_t page = hz_page_of(end[left]);
        if (HZ_UNLIKELY(page >= hz_atomic_peek(&hz_map.granules) >> HZ_PAGE_GRANULES_SHIFT)) break;
        const hz_page_info *info = &hz_map.infos[page];
        if (HZ_UNLIKELY(info->class_ != class_ || info->shard != shard)) break;
        hz_page_info *span = &hz_map.infos[info->head];
        const uintptr_t start = (uintptr_t)end[left] & -(uintptr_t)HZ_PAGE_BYTES;
        uintptr_t lowest;
        const ptrdiff_t after = mark_back(start + info->colour, HZ_PAGE_BYTES - info->colour, words,
                                          end, left, &lowest);
        if (HZ_UNLIKELY(after == left)) break;
        const uintptr_t word = lowest - first_word - (uintptr_t)info->head * WORDS_PER_PAGE;
        if (word < span->scan_word) span->scan_word = (uint32_t)word;
        span->free_count += (uint32_t)(after - left);
        left = after;
        if (span->listing != HZ_SPAN_LISTED || span_is_empty(span)) span_settle(bin, span, &dead);
    }
    hz_lock_release(&bin->lock);
    if (HZ_UNLIKELY(left != 0)) hz_die("a block was freed twice", end[left]);
    destroy_all(dead, class_);
}

bool hz_span_holds(uint32_t shard, uint32_t class_, const void *block)
{
    hz_bin *bin = bin_of(shard, class_);
    hz_lock_take(&bin->lock);
    const size_t granule = (uintptr_t)block % HZ_PAGE_BYTES / HZ_GRANULE_BYTES;
    const uint64_t bit = UINT64_C(1) << granule % HZ_WORD_BITS;
    const bool is_held = is_of_bin(shard, class_, block) &&
                         (page_bits(hz_page_of(block))[granule / HZ_WORD_BITS] & bit) != 0;
    hz_lock_release(&bin->lock);
    return is_held;
}

void hz_span_end_lease(uint32_t shard, uint32_t class_, hz_lease *lease)
{
    if (lease->blocks == 0) return;
    hz_bin *bin = bin_of(shard, class_);
    hz_page_info *span = hz_span_of(lease->first), *dead = NULL;
    hz_lock_take(&bin->lock);
    span_take_back(span, lease);
    span_settle(bin, span, &dead);
    hz_lock_release(&bin->lock);
    destroy_all(dead, class_);
}

bool hz_span_trim(uint32_t shard, uint32_t class_)
{
    hz_bin *bin = bin_of(shard, class_);
    hz_page_info *dead = NULL;
    if (hz_atomic_peek(&bin->kept_count) == 0) return false;
    hz_lock_take(&bin->lock);
    while (bin->kept != NULL) span_bury(bin, bin->kept, &dead);
    hz_lock_release(&bin->lock);
    destroy_all(dead, class_);
    return dead != NULL;
}

/* ---- fork ----------------------------------------------------------------------------------- */

static bool lost[HZ_SHARDS_MAX][HZ_CLASSES + 1]; /* bins whose lock was held, at the fork, by a
                                                    thread that the child does not have */

static bool bins_forget(void)
{
    bool any = false;
    for (uint32_t shard = 0; shard < hz_map.shards; shard++) {
        for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
            hz_bin *bin = bin_of(shard, class_);
            const bool is_lost = hz_lock_inherit(&bin->lock);
            if (lost[shard][class_] != is_lost) lost[shard][class_] = is_lost;
            if (!is_lost) continue;
            bin->spans = bin->kept = NULL;
            hz_atomic_poke(&bin->kept_count, 0);
            any = true;
        }
    }
    return any;
}

static uint32_t count_bits(const hz_page_info *span)
{
    uint32_t count = 0;
    const uint64_t *bits = span_bits(span);
    for (size_t i = 0; i < (size_t)span->pages * WORDS_PER_PAGE; i++)
        count += (uint32_t)__builtin_popcountll(bits[i]);
    return count;
}

/* Lists a span of a lost bin again, and counts the blocks that are back in it. */
static void list_anew(hz_page_info *span)
{
    const uint32_t class_ = span->class_;
    if (class_ == HZ_CLASS_NONE || class_ > HZ_CLASSES || !lost[span->shard][class_]) return;
    span->listing = HZ_SPAN_UNLISTED;
    span->scan_word = 0;
    span->free_count = count_bits(span);
    if (span_is_used_up(span)) return;
    bin_insert(bin_of(span->shard, class_), span,
               span_is_empty(span) ? HZ_SPAN_KEPT : HZ_SPAN_LISTED);
}

void hz_span_after_fork(void)
{
    if (bins_forget()) hz_pages_each_out(list_anew);
}
