/* clang-format off */
/*
 * Every struct of hz.
 *
 * Glossary, from small to large:
 *   granule   16 bytes: what every block is a multiple of
 *   block     what malloc returns
 *   class     blocks of one size, 1..HZ_CLASSES; above the largest class a block is `large`
 *   key       a random number for each class, drawn when the process starts; no block holds it
 *   seal      the second word of a free block: the key of its class, mixed with its own address. A
 *             free writes it and an allocation overwrites it. A block without it is never handed
 *             out: it was freed twice and is in use, or it was written to after its free
 *   page      64 KiB of the arena, the unit of the page pool. The kernel's own pages have 4, 16 or
 *             64 KiB
 *   entry     of a page: two words from which a free learns whether a block starts at an address
 *   info      of a page: all else that hz knows of it, and of the run that begins there
 *   hollow    said of a free block whose memory went back to the system, but for the ends
 *   cut       said of blocks: taken from the end of a span that was never used
 *   run       consecutive pages that are free, a span, or one large block. Runs are split and joined
 *   dirty     said of free pages: still resident. Clean ones read as zero and cost no memory
 *   span      a run that is cut into blocks of one class
 *   lease     the uncut end of a span, lent to one heap
 *   arena     the one range of addresses that all blocks come from, with its tables
 *   magazine  one thread's free blocks of one class: an array of pointers to them, in whose slots
 *             the newest comes last. Its hot half is an hz_stack, the rest an hz_magazine_cold
 *   stack     the hot half of a magazine: where its top is, and the key of its class
 *   row       the stacks of one shard, by class, as one thread sees them: its own shard's, the home
 *             row, are those of its magazines; those of other shards are always full
 *   heap      one thread's magazines, its ring, its counters
 *   ring      blocks of other shards that a thread has freed and not yet handed over
 *   depot     free blocks of one class that the threads of one shard share
 *   shard     a set of depots and bins; every heap and every span belongs to one
 *   node      a group of CPUs with memory of their own (NUMA); every shard belongs to one, and every
 *             run in use or dirty lies in the memory of one, as far as hz knows
 *   bin       the spans of one class of one shard that have free blocks
 *   fence     bytes behind what was asked for that the program must not write, see harden.h
 *   guard     pages beside a run that may not be touched, see guard.c
 *   quarantine  where blocks wait after their free until they may be handed out again, see harden.c
 *   inbox     mixed blocks handed over to a shard, not yet sorted into its depots
 */
/* clang-format on */
#ifndef HZ_TYPES_H
#define HZ_TYPES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config.h"

enum {
    HZ_GRANULE_SHIFT = 4,
    HZ_GRANULE_BYTES = 1 << HZ_GRANULE_SHIFT,
    HZ_PAGE_SHIFT = 16,
    HZ_PAGE_BYTES = 1 << HZ_PAGE_SHIFT,
    HZ_PAGE_GRANULES_SHIFT = HZ_PAGE_SHIFT - HZ_GRANULE_SHIFT,
    HZ_PAGE_ENTRY_SHIFT = 4,    /* log2 of the bytes of an hz_page_entry */
    HZ_SMALL_MAX_BYTES = 32832, /* up to here the class comes from a table, above by arithmetic */
    HZ_CLASS_MAX_BYTES = 256 * 1024 + 64,
    HZ_SHARDS_MAX = 64,
    HZ_CACHE_LINE_BYTES = 64,
    HZ_WORD_BITS = 64,
    HZ_SPAN_BLOCKS_MIN = 4, /* a span of long blocks holds at least this many */
    HZ_NODES_MAX = 16,      /* nodes that are told apart */
};

/* No address is as high as this; on x86-64 none is as high as 2^47. */
#define HZ_ADDRESS_MAX ((uint64_t)1 << 48)

/* The numbers that a page's class may have; each indexes the tables of a heap and of the map. */
enum {
    HZ_CLASS_NONE = 0,      /* no block lies here */
    HZ_SMALL_CLASSES = 40,  /* 1..40: by size, up to HZ_SMALL_MAX_BYTES */
    HZ_MEDIUM_CLASSES = 12, /* 41..52: by size, up to HZ_CLASS_MAX_BYTES */
    HZ_SIZED_CLASSES = HZ_SMALL_CLASSES + HZ_MEDIUM_CLASSES,
    HZ_ALIGNED_CLASSES = 10, /* 53..62: powers of two, 128 bytes to a page, for aligned requests */
    HZ_CLASSES = HZ_SIZED_CLASSES + HZ_ALIGNED_CLASSES,
    HZ_CLASS_LARGE = 63, /* a large block */
    HZ_CLASS_NUMBERS = 64,
};
_Static_assert(HZ_CLASSES < HZ_CLASS_LARGE, "no class may bear the number of large blocks");

/* Bytes of the longest span, see span_length in span.c. */
#define HZ_SPAN_BYTES_LARGE ((uint64_t)HZ_SPAN_BLOCKS_MIN * HZ_CLASS_MAX_BYTES + HZ_PAGE_BYTES - 1)
#define HZ_SPAN_BYTES_MAX                                                                          \
    (HZ_PARAM_MOST(span_bytes) > HZ_SPAN_BYTES_LARGE ? HZ_PARAM_MOST(span_bytes)                   \
                                                     : HZ_SPAN_BYTES_LARGE)

#define HZ_ALIGNED_TO_LINE _Alignas(HZ_CACHE_LINE_BYTES)

/* The bits of an address that the processor ignores: a program may mark its pointers there. */
#ifdef __aarch64__
#define HZ_TAG_BITS ((uint64_t)0xff << 56)
#else
#define HZ_TAG_BITS ((uint64_t)0)
#endif

/* ---- counters ------------------------------------------------------------------------------- */

typedef enum hz_stat {
#define HZ_STAT(name, doc) HZ_STAT_##name,
#include <hz/stats.def>
#undef HZ_STAT
    HZ_STATS_COUNT
} hz_stat;

typedef struct hz_counters {
    _Atomic uint64_t of[HZ_STATS_COUNT]; /* one per row of stats.def */
} hz_counters;

/* ---- locks ---------------------------------------------------------------------------------- */

typedef union hz_lock {
    _Atomic uintptr_t word; /* 0: free; else hz_lock_me of the holder; odd: a thread sleeps */
    _Atomic uint32_t low;   /* the half with the bit "odd": what a futex compares */
} hz_lock;
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half comes first");

/* ---- the map: what the fast paths need of the arena ----------------------------------------- */

/* What a free must know of a page; the step is zero where no block was cut. */
typedef struct hz_page_entry {
    _Atomic uint64_t origin; /* makes the remainder of the last block cut zero */
    _Atomic uint64_t step;   /* see hz_remainder; its lowest 16 bits tell the shard and the class */
} hz_page_entry;

typedef struct hz_map_t {
    HZ_ALIGNED_TO_LINE hz_page_entry *entries; /* an entry per page, see hz_entry_at */
    _Atomic uintptr_t entry_mask;              /* selects the byte offset of a page's entry */
    size_t small_max_bytes;  /* requests up to here find their class in a table: HZ_SMALL_MAX_BYTES
                                or, while the fast path is closed, 0 */
    size_t class_max_bytes;  /* requests up to here take a block of a class: HZ_CLASS_MAX_BYTES or 0
                                in the same way */
    uintptr_t base;          /* address of the arena's first granule */
    _Atomic size_t granules; /* granules of the arena, up to its last page in use */
    uint64_t *free_bits;     /* a bit per granule: a block that went back to its span starts here */
    struct hz_page_info *infos; /* an info per page */
    uint32_t shards;            /* shards in use: the parameter, resolved */
    uint32_t nodes;             /* nodes that are told apart, at most `shards`; see hz_node_of */
    size_t max_dirty_bytes;     /* the parameter where it is auto */
    uint64_t keys[HZ_CLASS_NUMBERS]; /* by class; secret */
} hz_map_t;

/* ---- front ---------------------------------------------------------------------------------- */

/* The uncut end of a span: the heap that it is lent to cuts blocks there without a lock. */
typedef struct hz_lease {
    unsigned char *first; /* the next block */
    uint32_t blocks;      /* blocks left; 0: nothing is lent */
} hz_lease;

/* The hot half of a magazine: what the fast paths need of it. */
typedef struct hz_stack {
    void **top;   /* one past the newest block */
    uint64_t key; /* of the class: hz_map.keys */
} hz_stack;

/* The cold half, made when the thread first runs short of the class. The slot before the array's
 * first one points to a block without a seal: a pop from an empty magazine finds it. The slot after
 * the last usable one is NULL: a push to a full magazine finds it. No usable slot is ever NULL. The
 * fast paths have no other test for empty or full. */
typedef struct hz_magazine_cold {
    void **blocks;        /* the slots; at first a few, behind this struct */
    hz_lease lease;       /* the source of blocks that were never handed out */
    uint64_t short_ticks; /* when it last ran empty or full */
    uint32_t mean_ticks;  /* mean time between two such moments */
    uint32_t given;       /* blocks that flushes of it gave up and no refill has taken since */
    uint16_t taken;       /* blocks that refills brought, until they are worth a lease */
    uint16_t cap;         /* most blocks it may ever hold */
    uint16_t grown;       /* blocks it may hold by now */
    uint8_t streak;       /* how often in a row it ran empty, or full; counted up to UINT8_MAX */
    bool was_full;        /* whether it last ran full; else it ran empty */
    bool has_freed;       /* of a class of long blocks: whether the thread has ever freed one */
} hz_magazine_cold;

typedef struct hz_heap {
    HZ_ALIGNED_TO_LINE hz_stack *home_row; /* of `rows`, that of its own shard: for allocations */
    hz_stack *rows;                        /* a row per shard: for frees */
    hz_magazine_cold *magazines[HZ_CLASS_NUMBERS]; /* by class, NULL until used; the other halves
                                                      are home_row */
    unsigned char *fresh;      /* where the next magazine is made, */
    unsigned char *fresh_end;  /* and how far there is room */
    void **arrays;             /* slots of the magazines that have grown */
    struct hz_heap *next;      /* list of all heaps, never shortened */
    struct hz_heap *next_free; /* list of heaps whose thread has ended */
    void **ring;             /* remote_ring_size items: blocks of other shards */
    void **ring_scratch;     /* as many again: where the ring is sorted */
    void **ring_inbox;       /* as many again: what was taken from the shard's inbox */
    void **deferred;         /* blocks whose free is deferred; at most defer_free */
    void **quarantine;       /* under hardening=full: quarantine_blocks places, some empty */
    size_t ring_bytes;       /* bytes of the blocks in the ring */
    uint32_t ring_count;     /* blocks in it */
    uint32_t deferred_count; /* blocks in `deferred` */
    uint32_t shard;          /* home; kept when another thread adopts the heap */
    _Atomic uint32_t thread; /* under HZ_CONTROL=1: the thread that has it, as the system numbers
                                it; 0: none */
    uint32_t slow_calls;     /* calls of the slow paths, see hz_tick */
    uint32_t short_at;       /* slow call in which a shortage last emptied its magazines; 0: none */
    uint32_t asked_before;   /* which request to empty its magazines it has met, see hz_tick_ask */
    uint32_t steal_from;     /* class whose magazine may shrink next */
    size_t grown_bytes;      /* sum of grown x block size, at most thread_cache_bytes */
    size_t charged_bytes;    /* those of its long magazines, see budget.c */
    uint64_t noted_ticks;    /* when it was last noted there as at work, */
    uint32_t noted_epoch;    /* and in which epoch */
    uint32_t astray;         /* how often in a row its thread was seen on another node then */
    uint64_t random;         /* under hardening=full: state of the random numbers */
    void *latest;            /* under hardening=full: the block that was handed out last */
    hz_lock looking;         /* held while `latest` is checked: no span is freed */
    hz_counters counters;    /* written by the owner only */
} hz_heap;

/* ---- middle --------------------------------------------------------------------------------- */

/* A batch on a lock-free stack. */
typedef struct hz_batch {
    _Atomic uint32_t next; /* number of the batch below, from 1; 0 at the bottom */
    uint32_t count;        /* blocks in it */
    void *blocks[];        /* flush_batch places */
} hz_batch;

typedef struct hz_depot {
    HZ_ALIGNED_TO_LINE hz_lock
        lock;                     /* guards count and blocks, under the policies mutex and spin */
    _Atomic uint32_t capacity;    /* blocks it may hold; 0 until first used */
    _Atomic uint32_t count;       /* blocks it holds */
    _Atomic uint32_t least;       /* fewest blocks that a request has left there since the last
                                     hz_depot_decay; UINT32_MAX: no request came. At first 0.
                                     Between the parts of a decay: twice what is still to go,
                                     as half of it is due */
    void **blocks;                /* the stack, under mutex and spin */
    unsigned char *batches;       /* the batches, under lockfree */
    _Atomic uint64_t full, empty; /* stacks of batches, under lockfree: generation << 32 | number */
    _Atomic uint32_t
        misses; /* requests that found nothing since the background thread last looked */
} hz_depot;

typedef struct hz_inbox {
    HZ_ALIGNED_TO_LINE hz_lock lock; /* guards the rest */
    _Atomic uint32_t count;          /* blocks waiting */
    void **blocks;                   /* HZ_INBOX_BLOCKS places, made at first use */
} hz_inbox;

enum { HZ_INBOX_BLOCKS = 8192 };

/* ---- back ----------------------------------------------------------------------------------- */

typedef enum hz_run_state {
    HZ_RUN_NONE = 0, /* no run begins here: the page lies within one, or was never used */
    HZ_RUN_CLEAN,    /* a free run that reads as zero and costs no memory */
    HZ_RUN_DIRTY,    /* a free run that is still resident */
    HZ_RUN_OUT,      /* the first page of a run in use, and no other page */
    HZ_RUN_PURGED,   /* the first page of a run that a thread is purging */
    HZ_RUN_GUARDED,  /* as OUT, but between guard pages: to the page pool it and they are one run */
} hz_run_state;

typedef enum hz_span_listing {
    HZ_SPAN_UNLISTED = 0, /* all its blocks are out */
    HZ_SPAN_LISTED,       /* in its bin, some of its blocks are out */
    HZ_SPAN_KEPT,         /* in its bin, entirely free */
} hz_span_listing;

/* What hz knows of a page, and of the run that begins there, whether it is free, a span or a large
 * block. A run is handled by the info of its first page; of its other pages only the fields that
 * say so have a meaning, and of the last page of a free run `state` and `head`. */
typedef struct hz_page_info {
    /* Neighbours in a bin, among the runs that are being purged, or in a list of free runs of like
     * size. */
    HZ_ALIGNED_TO_LINE struct hz_page_info *next;
    union {
        struct hz_page_info *previous; /* the same, backwards */
        size_t asked_bytes; /* of a large block under hardening=full: what was asked for */
    };
    uint32_t head;   /* number of the run's first page; set in every page of a span */
    uint32_t pages;  /* length of the run */
    uint8_t state;   /* hz_run_state */
    uint8_t class_;  /* class of its blocks; set in every page of a span, in its first page last;
                        there it is cleared first */
    uint8_t shard;   /* shard that its blocks belong to; set in every page of a span */
    uint8_t listing; /* hz_span_listing */
    uint8_t node;    /* in whose memory the run lies; 0 where it is clean. Like the state it is set
                        in both ends of a free run */
    uint32_t capacity;   /* blocks that fit */
    uint32_t cut;        /* blocks cut or lent so far, from the lowest address on */
    uint32_t free_count; /* blocks that came back, marked in free_bits */
    uint32_t scan_word;  /* word of free_bits, from its first, where a search starts */
    uint32_t colour;     /* of a page of a span: bytes before the span's first block */
    uintptr_t purger;    /* of a run that is being purged: the thread, see hz_lock_me */
} hz_page_info;
_Static_assert(sizeof(hz_page_info) == HZ_CACHE_LINE_BYTES, "infos do not share cache lines");
_Static_assert((int)HZ_CLASS_NUMBERS <= UINT8_MAX && (int)HZ_SHARDS_MAX <= UINT8_MAX,
               "a class fits a byte, and so does a shard; large blocks are of shard HZ_SHARDS_MAX");

/* A pass over the dirty pages, from the highest downwards, in parts. */
typedef struct hz_sweep {
    size_t below;       /* the pages from here on were visited */
    uint32_t now_ms;    /* the time from which ages are counted */
    uint32_t least_ms;  /* least age of the pages that it takes */
    uint32_t oldest_ms; /* greatest age among the pages that it left */
    size_t looks;       /* pages that it may still look at; pages that are alike count as one */
} hz_sweep;

typedef struct hz_bin {
    HZ_ALIGNED_TO_LINE hz_lock lock; /* guards the rest, and the bookkeeping of its spans */
    hz_page_info *spans;             /* spans with free blocks and blocks in use */
    hz_page_info *kept;              /* spans that are entirely free */
    _Atomic uint32_t kept_count;     /* how many */
} hz_bin;

typedef struct hz_shard {
    hz_depot depots[HZ_CLASSES + 1]; /* by class */
    hz_bin bins[HZ_CLASSES + 1];     /* by class */
    hz_inbox inbox; /* mixed blocks from other shards, under remote_grouping shard */
} hz_shard;

#endif
