/*
 * Caches without limit, one for each thread: which thread has which line, and what a write takes
 * from the others. Then: of what the lines are, and the result as JSON.
 *
 *   taken     copies of a line that a write removed from the caches of other threads
 *   unshared  those of them whose thread had used only other words of the line
 *   missed    accesses that found the line taken since the thread's last access
 *   awaited   accesses for which a thread waits until another cache answers: reads of a line that
 *             only others have, and atomic changes of one that others have, too. A plain write waits in
 *             a buffer of the processor, and its thread goes on
 */
#include "lines.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "../src/internal.h"
#include "../src/os.h"
#include "../src/text.h"

enum {
    LINES = 1 << 22,
    WORDS = HZ_CACHE_LINE_BYTES / 8,
    SET_WORDS = HZ_LINES_CACHES / 64,
    SYMBOLS = 4096,
    TEXT_BYTES = 1 << 20,
};

/* A set of threads. */
typedef struct set {
    uint64_t bits[SET_WORDS];
} set;

typedef struct line {
    uint64_t number;  /* its address by HZ_CACHE_LINE_BYTES; 0: this line is unused */
    set holders;      /* threads that have it */
    set losers;       /* threads from which it was taken */
    set users[WORDS]; /* of the holders: those that used each word since they got it */
    uint64_t reads, writes, taken, unshared, missed, awaited;
} line;

/* Lines of one kind. */
typedef struct symbol {
    char name[64];
    uint64_t lines, reads, writes, taken, unshared, missed, awaited;
} symbol;

static line *lines;
static symbol symbols[SYMBOLS];
static size_t symbol_count;

/* ---- caches --------------------------------------------------------------------------------- */

static bool set_has(const set *of, uint32_t lane)
{
    return (of->bits[lane / 64] >> lane % 64 & 1) != 0;
}

static void set_add(set *to, uint32_t lane)
{
    to->bits[lane / 64] |= UINT64_C(1) << lane % 64;
}

static line *line_of(uint64_t address)
{
    const uint64_t number = address / HZ_CACHE_LINE_BYTES;
    size_t at = number * UINT64_C(0x9e3779b97f4a7c15) >> 42;
    if (lines == NULL)
        lines = mmap(NULL, LINES * sizeof *lines, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (lines == MAP_FAILED) abort();
    for (size_t i = 0; i < LINES; i++, at = (at + 1) % LINES) {
        if (lines[at].number == 0) lines[at].number = number;
        if (lines[at].number == number) return &lines[at];
    }
    abort(); /* more than 256 MiB were used */
}
_Static_assert(LINES == 1 << (64 - 42), "the shift leaves the number of a line");

/* Takes the line from all but one thread. */
static void line_take(line *from, uint32_t lane, unsigned word)
{
    for (uint32_t i = 0; i < SET_WORDS; i++) {
        const uint64_t own = lane / 64 == i ? UINT64_C(1) << lane % 64 : 0;
        const uint64_t others = from->holders.bits[i] & ~own;
        from->taken += (uint64_t)__builtin_popcountll(others);
        from->unshared += (uint64_t)__builtin_popcountll(others & ~from->users[word].bits[i]);
        from->losers.bits[i] |= others;
        from->holders.bits[i] &= own;
        for (unsigned w = 0; w < WORDS; w++) from->users[w].bits[i] &= own;
    }
}

/* Whether an access must ask another cache: for the line, or to have it alone. */
static bool line_is_elsewhere(const line *at, uint32_t lane, bool is_write)
{
    bool others = false;
    for (uint32_t i = 0; i < SET_WORDS; i++)
        others |= (at->holders.bits[i] & ~(lane / 64 == i ? UINT64_C(1) << lane % 64 : 0)) != 0;
    return others && (is_write || !set_has(&at->holders, lane));
}

void hz_caches_access(uint32_t lane, uint64_t address, bool is_write, bool is_buffered)
{
    line *at = line_of(address);
    const unsigned word = (unsigned)(address / 8 % WORDS);
    at->awaited += !is_buffered && line_is_elsewhere(at, lane, is_write);
    if (!set_has(&at->holders, lane)) {
        if (set_has(&at->losers, lane)) at->missed++;
        set_add(&at->holders, lane);
        at->losers.bits[lane / 64] &= ~(UINT64_C(1) << lane % 64);
    }
    if (is_write) {
        at->writes++;
        line_take(at, lane, word);
    } else {
        at->reads++;
    }
    set_add(&at->users[word], lane);
}

/* ---- what a line is ------------------------------------------------------------------------- */

/* The ends of this library in memory. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static bool lies_in(uint64_t address, const void *start, size_t bytes)
{
    const uint64_t end = address + HZ_CACHE_LINE_BYTES;
    return start != NULL && end > (uintptr_t)start && address < (uintptr_t)start + bytes;
}

static const char *name_in_shard(uint64_t address, hz_shard *shard)
{
    if (lies_in(address, shard->depots, sizeof shard->depots)) return "depot";
    if (lies_in(address, shard->bins, sizeof shard->bins)) return "bin";
    if (lies_in(address, &shard->inbox, sizeof shard->inbox)) return "inbox";
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        const hz_depot *depot = &shard->depots[class_];
        const size_t blocks = hz_atomic_peek(&depot->capacity);
        if (lies_in(address, depot->blocks, blocks * sizeof(void *))) return "depot's array";
    }
    if (lies_in(address, shard->inbox.blocks, HZ_INBOX_BLOCKS * sizeof(void *)))
        return "inbox's array";
    return NULL;
}

/* Whether an address lies in the arrays of a heap's magazines, which follow each other. */
static bool lies_in_arrays(uint64_t address, const hz_heap *heap)
{
    const hz_magazine_cold *last = &heap->magazines[HZ_CLASSES];
    const uintptr_t start = (uintptr_t)(heap->magazines[1].blocks - 1);
    return lies_in(address, (void *)start, (uintptr_t)(last->blocks + last->cap + 1) - start);
}

static const char *name_in_heap(uint64_t address, const hz_heap *heap)
{
    const size_t ring_bytes = (size_t)hz_cfg.remote_ring_size * sizeof(void *);
    if (lies_in(address, &heap->counters, sizeof heap->counters)) return "heap's counters";
    if (lies_in(address, heap, sizeof *heap)) return "heap";
    if (lies_in(address, heap->rows, hz_map.shards * HZ_ROW_OFFSET((size_t)1))) return "rows";
    if (lies_in(address, heap->ring, 3 * ring_bytes)) return "ring";
    if (lies_in_arrays(address, heap)) return "magazine's array";
    return NULL;
}

static const char *name_in_tables(uint64_t address)
{
    const size_t granules = hz_atomic_peek(&hz_map.granules);
    const size_t pages = granules >> HZ_PAGE_GRANULES_SHIFT;
    if (lies_in(address, (void *)hz_map.base, granules << HZ_GRANULE_SHIFT)) return "blocks";
    if (lies_in(address, hz_map.entries,
                hz_atomic_peek(&hz_map.entry_mask) + sizeof *hz_map.entries))
        return "page entries";
    if (lies_in(address, hz_map.infos, (pages + 1) * sizeof *hz_map.infos)) return "page infos";
    if (lies_in(address, hz_map.free_bits, granules / 8)) return "free bits";
    return NULL;
}

static const char *name_of(uint64_t address)
{
    static char text[64];
    const char *name = name_in_tables(address);
    for (uint32_t i = 0; name == NULL && i < hz_map.shards; i++)
        name = name_in_shard(address, &hz_shards[i]);
    for (hz_heap *heap = hz_heap_first(); name == NULL && heap != NULL; heap = heap->next)
        name = name_in_heap(address, heap);
    if (name != NULL) return name;
    const uintptr_t start = (uintptr_t)__ehdr_start;
    if (address < start || address >= (uintptr_t)_end) return "elsewhere";
    hz_text into = {text, sizeof text, 0};
    hz_text_add(&into, "0x%" PRIx64, address - start); /* a static: its offset in the library */
    return text;
}

static symbol *symbol_of(const char *name)
{
    for (size_t i = 0; i < symbol_count; i++)
        if (strcmp(symbols[i].name, name) == 0) return &symbols[i];
    if (symbol_count == SYMBOLS) return &symbols[SYMBOLS - 1];
    memcpy(symbols[symbol_count].name, name, strlen(name) + 1);
    return &symbols[symbol_count++];
}

static void line_count(const line *from)
{
    if (from->number == 0) return;
    symbol *of = symbol_of(name_of(from->number * HZ_CACHE_LINE_BYTES));
    of->lines++;
    of->reads += from->reads;
    of->writes += from->writes;
    of->taken += from->taken;
    of->unshared += from->unshared;
    of->missed += from->missed;
    of->awaited += from->awaited;
}

void hz_caches_write(const char *path, uint32_t threads, uint64_t calls, uint64_t all_calls)
{
    static char buffer[TEXT_BYTES];
    hz_text text = {buffer, sizeof buffer, 0};
    for (size_t i = 0; lines != NULL && i < LINES; i++) line_count(&lines[i]);
    hz_text_add(&text, "{\"schema\":\"hz-lines/1\",\"threads\":%" PRIu32 ",\"calls\":%" PRIu64,
                threads, calls);
    hz_text_add(&text, ",\"all_calls\":%" PRIu64 ",\"shards\":%" PRIu32 ",\"symbols\":[", all_calls,
                hz_map.shards);
    for (size_t i = 0; i < symbol_count; i++) {
        const symbol *of = &symbols[i];
        hz_text_add(&text, "%s\n{\"name\":\"%s\",\"lines\":%" PRIu64 ",\"reads\":%" PRIu64,
                    i > 0 ? "," : "", of->name, of->lines, of->reads);
        hz_text_add(&text, ",\"writes\":%" PRIu64 ",\"taken\":%" PRIu64, of->writes, of->taken);
        hz_text_add(&text,
                    ",\"unshared\":%" PRIu64 ",\"missed\":%" PRIu64 ",\"awaited\":%" PRIu64 "}",
                    of->unshared, of->missed, of->awaited);
    }
    hz_text_add(&text, "]}\n");
    if (text.length < sizeof buffer) (void)hz_os_write_file(path, buffer, text.length);
}
