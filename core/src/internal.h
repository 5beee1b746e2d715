/*
 * The table of contents: what each file offers to the others, from the top:
 *
 *     alloc, free, override*,    the entry points
 *     extensions
 *     magazine, budget, remote   front: per thread, no locks
 *     depot                      middle: shared by the threads of a shard
 *     span                       back: runs of pages cut into blocks
 *     large                      back: blocks of whole pages
 *     purge                      back: what goes back to the system
 *     pages, sweep, repair       back: the page pool, what leaves it for a purge, its repair
 *     move, freed                pages that change their place; when pages were freed
 *     arena, os                  addresses and system calls
 *
 * A file calls downwards only. The files that come after those stand beside them: any may call
 * them. deepbind.c stands alone.
 *
 * What is inlined has headers of its own, one for each subject; os.h is the system.
 */
#ifndef HZ_INTERNAL_H
#define HZ_INTERNAL_H

#include <string.h>

#include "atomic.h"     /* access to what several threads use */
#include "block.h"      /* where blocks start, and where pages, entries and infos are */
#include "compiler.h"   /* what is inlined, which branch is likely */
#include "counters.h"   /* counting an event of stats.def */
#include "drop_in.h"    /* the C library's names for hz's functions */
#include "heap.h"       /* the calling thread's heap */
#include "lock.h"       /* taking and releasing a lock */
#include "magazine.h"   /* pushing a block to the thread's own magazine */
#include "modes.h"      /* hardening, deferred frees: is it on? */
#include "rest.h"       /* waking the background thread of a program that rests */
#include "rows.h"       /* where a stack lies in a thread's rows */
#include "seal.h"       /* the seal of a free block */
#include "size_class.h" /* the class of a size */
#include "types.h"      /* the glossary, and every struct */

/* These symbols are hidden. Otherwise the compiler would load the address of each variable from a
 * table, as another library might replace it. */
#pragma GCC visibility push(hidden)

/* ---- alloc.c -------------------------------------------------------------------------------- */

/* A block of a class, or NULL and ENOMEM. */
void *hz_class_alloc_retrying(uint32_t class_);
/* The smallest class that serves an alignment, or HZ_CLASS_NONE. */
uint32_t hz_class_aligned(size_t align, size_t size);
/* As hz_large_alloc; without memory it trims what no other thread holds and tries again, and
 * then for as long as the program's hook for that wants. */
void *hz_large_alloc_retrying(size_t size, size_t align, bool *zeroed);

/* ---- free.c --------------------------------------------------------------------------------- */

/* Makes the heap's array for deferred frees, if frees are deferred. */
bool hz_free_make(hz_heap *heap);
/* Carries out the deferred frees of a heap. */
void hz_free_deferred(hz_heap *heap);
/* Ends the program if a block of `class_` is free. */
void hz_require_live(const void *block, uint32_t class_);
/* Bytes that the block holds, which is of `class_`. */
size_t hz_usable_of(const void *block, uint32_t class_);
/* Puts a sealed block into the heap's magazine or, if it is of another shard, its ring. */
void hz_free_to_heap(hz_heap *heap, uint32_t class_, void *block);

/* ---- magazine.c, and magazine.h ------------------------------------------------------------- */

/* Bytes that the first magazines of a heap need, and all of them; and where these are: zeroed. */
size_t hz_magazine_near_bytes(void);
size_t hz_magazine_bytes(void);
void hz_magazine_make_all(hz_heap *heap, unsigned char *near, unsigned char *far);
/* Pops a block of `class_`, after a refill if need be; NULL when there is no memory. */
void *hz_magazine_pop(hz_heap *heap, uint32_t class_);
/* Returns to the system what a long block holds, but for its seal, if it is the first of its class
 * that the thread frees. */
void hz_magazine_hollow(hz_heap *heap, uint32_t class_, void *block);
void hz_magazine_flush_all(hz_heap *heap);
/* Lets the magazines of a heap that has neither a thread nor blocks grow from nothing again, and
 * gives the whole pages of their slots back to the system. */
void hz_magazine_forget_slots(hz_heap *heap);
/* Swaps the block that would be popped next with a random one of the magazine. */
void hz_magazine_shuffle(hz_heap *heap, uint32_t class_, uint64_t random);
/* Whether a block lies in a magazine; the heap may be another thread's. */
bool hz_magazine_holds(const hz_heap *heap, uint32_t class_, const void *block);
/* How many blocks a magazine holds; the heap may be another thread's. */
uint32_t hz_magazine_count(const hz_heap *heap, uint32_t class_);

/* ---- budget.c: how much the magazines of a thread may hold ---------------------------------- */

/* Notes that a thread ran short: it is at work. */
void hz_budget_note(hz_heap *heap, uint64_t now_ticks);
/* Most bytes that its magazines together may grow to now. */
size_t hz_budget_of(const hz_heap *heap);
/* One of them may hold `to` bytes now, and not `from`. */
void hz_budget_charge(hz_heap *heap, size_t from, size_t to);
/* A thread gets a heap that another had; a thread ends. */
void hz_budget_join(const hz_heap *heap);
void hz_budget_leave(const hz_heap *heap);
void hz_budget_after_fork(void);

/* ---- remote.c ------------------------------------------------------------------------------- */

/* Bytes that the rings of a heap need, and where they are. */
size_t hz_remote_bytes(void);
void hz_remote_make(hz_heap *heap, void **memory);
/* Puts a block of another shard into the ring, and hands the ring over when it is full. */
void hz_remote_push(hz_heap *heap, uint32_t class_, uint32_t shard, void *block);
void hz_remote_flush(hz_heap *heap);
/* Moves blocks from the inbox of the heap's shard to the shard's depots. */
void hz_remote_drain_inbox(hz_heap *heap);
/* Whether a block lies in a ring, which may be another thread's; in the inbox of a shard. */
bool hz_remote_holds(const hz_heap *heap, const void *block);
bool hz_inbox_holds(uint32_t shard, const void *block);
/* Adds the number of blocks of each class that lie there to `blocks`. */
void hz_remote_count(const hz_heap *heap, size_t *blocks);
void hz_inbox_count(uint32_t shard, size_t *blocks);

/* ---- depot.c -------------------------------------------------------------------------------- */

/* Takes up to `want` blocks from the depot, else from its spans or the heap's lease (NULL: none);
 * returns how many, 0 when there is no memory. */
size_t hz_depot_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease);
/* Gives blocks to the depot; what it cannot hold goes on to the spans. */
void hz_depot_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count);
/* Gives a depot that ran dry a batch of blocks from its spans; returns how many. */
size_t hz_depot_top_up(uint32_t shard, uint32_t class_);
/* Moves everything that the depots hold to the spans. */
void hz_depot_trim(void);
typedef enum {
    HZ_DECAYED_NOTHING = 0, /* there was nothing to do */
    HZ_DECAYED_PART,        /* the next call for the same depot goes on */
    HZ_DECAYED_ALL,         /* all that was due is done */
} hz_decayed;

/* Moves half of the blocks that no request has needed since the last decay back to their spans, a
 * part in each call if they are many. After the last part it frees the kept empty spans. */
hz_decayed hz_depot_decay(uint32_t shard, uint32_t class_);
/* Whether a block lies in the depot of its class and shard. */
bool hz_depot_holds(uint32_t shard, uint32_t class_, const void *block);

/* ---- die.c ---------------------------------------------------------------------------------- */

/* Writes a message and aborts. The caller holds no lock, as a handler of SIGABRT may allocate. */
_Noreturn void hz_die(const char *what, const void *address);
void hz_warn_once(const char *what, const void *address);
/* For a block that should be free but has no seal: leaves it out of use, with a warning, or ends
 * the program. The caller holds no lock. */
void hz_leave_out(const void *block);
/* Whether a block of `class_` waits, free, in a magazine, a ring, a depot or its span. */
bool hz_is_parked(const void *block, uint32_t class_);

/* ---- span.c: spans and bins ----------------------------------------------------------------- */

/*
 * Puts up to `want` free blocks into `out`; returns how many. With a lease, only blocks that were
 * freed before; if there are none and the lease is empty, it gets the uncut end of a span.
 */
size_t hz_span_take(uint32_t shard, uint32_t class_, void **out, size_t want, hz_lease *lease);
/* Cuts up to `want` blocks from a lease; returns how many. */
size_t hz_span_cut(hz_lease *lease, uint32_t class_, void **out, size_t want);
/* Takes back what is left of a lease. */
void hz_span_end_lease(uint32_t shard, uint32_t class_, hz_lease *lease);
/* Takes back blocks of one class and one shard; ends the program if one was back already. */
void hz_span_give(uint32_t shard, uint32_t class_, void *const *blocks, size_t count);
/* Whether a block of that class and shard is back in its span. */
bool hz_span_holds(uint32_t shard, uint32_t class_, const void *block);
/* Frees the empty spans that are kept; false when there are none. */
bool hz_span_trim(uint32_t shard, uint32_t class_);
/* Bytes of all blocks cut from spans that still exist. */
size_t hz_span_cut_bytes(void);
/* The first block of the span that `block` lies in. */
void *hz_span_first_block(const void *block);
/* The span that `address` lies in. */
hz_page_info *hz_span_of(const void *address);
void hz_span_after_fork(void);

/* ---- large.c -------------------------------------------------------------------------------- */

/* `zeroed` as of hz_pages_alloc. */
void *hz_large_alloc(size_t size, size_t align, bool *zeroed);
/* `is_clean`: it reads as zero and is not resident. */
void hz_large_free(void *block, bool is_clean);
/* Grows or shrinks a block in place; false when it cannot grow. `size` is above that of every
 * class. */
bool hz_large_resize(void *block, size_t size);
/* Grows a block in place, where there is no memory for another one. */
bool hz_large_grow_at_last(void *block, size_t size);
/* A larger block in the place of `block`, with its contents; NULL when there is no memory. */
void *hz_large_move(void *block, size_t size);
size_t hz_large_bytes(const void *block);

/* ---- purge.c: what goes back to the system -------------------------------------------------- */

/* Returns to the system a part of the pages that have been free for decay_ms or exceed
 * max_dirty_bytes: at most HZ_PURGE_BYTES. False when nothing is due, or the system refused lately.
 * Only decay.c calls it, with no lock held: hz_tick_of_free once, hz_decay once a round. */
bool hz_purge_part(void);
enum { HZ_PURGE_BYTES = 1 << 20 };
/* Whether more was due after the last part. */
bool hz_purge_is_behind(void);
/* Returns all dirty pages, in parts; false when there were none. */
bool hz_purge_all(void);
/* Pages of a part where a whole run goes back: HZ_PURGE_BYTES, but at most some thousand parts. */
size_t hz_purge_part_pages(size_t run_pages);
void hz_purge_after_fork(void);

/* ---- pages.c: the page pool ----------------------------------------------------------------- */

/* A run of `pages` pages whose first is a multiple of `align` (a power of two), in the memory of
 * `node` if there is any; NULL when there is no memory. Sets `*zeroed` to whether the run reads as
 * zero. If `zeroed` is NULL, a part of the run may be resident and another not. */
hz_page_info *hz_pages_alloc(size_t pages, size_t align, uint32_t node, bool *zeroed);
void hz_pages_free(hz_page_info *run);
/* The same for a run that reads as zero and is not resident. */
void hz_pages_free_clean(hz_page_info *run);
/* Grows or shrinks a run in place; false when it cannot grow. */
bool hz_pages_resize(hz_page_info *run, size_t pages);
/* Grows a run in place by whatever is free behind it, where there is no other memory. */
bool hz_pages_grow_at_last(hz_page_info *run, size_t pages);
/* Free pages that are resident; no lock is taken. */
size_t hz_pages_dirty(void);
/* ---- huge.c: huge pages ---------------------------------------------------------------------- */

/* Pages of a huge page, of which the next calls get the rest; NULL: `node` has dirty pages, or
 * there are none, or `most` pages were taken in huge ones. */
hz_page_info *hz_pages_alloc_huge(size_t pages, uint32_t node, size_t most);
/* What is left of huge pages is dirty. */
void hz_pages_end_huge(void);

/* ---- sweep.c: what leaves the page pool to be purged ----------------------------------------- */

/* Takes the next run of up to `most` dirty pages that are old enough for the sweep. NULL: this part
 * of the sweep has none, or it may look at no more pages. It is over when its `below` is 0. */
hz_page_info *hz_pages_sweep(hz_sweep *sweep, size_t most);
/* Takes such a run back; its first `purged` pages read as zero now. */
void hz_pages_swept(hz_page_info *run, size_t purged);

/* ---- repair.c: the page pool in the child of a fork ----------------------------------------- */

/* Calls `act` for every run in use, whatever another thread was doing at the fork. */
void hz_pages_each_out(void (*act)(hz_page_info *run));
void hz_pages_after_fork(void);

/* ---- move.c --------------------------------------------------------------------------------- */

/* Moves all pages of `from` to the start of `to`, which is clean; afterwards `from` is clean.
 * False: that cannot be done, and nothing has changed. */
bool hz_run_move(const hz_page_info *from, const hz_page_info *to);
/* Returns the memory of pages to the system: they read as zero afterwards. */
bool hz_run_purge(size_t first, size_t pages);

/* ---- freed.c: when each dirty page was freed ------------------------------------------------ */

/* When a page was freed, in ms; 0: it is not dirty. */
uint32_t hz_freed_ms(size_t page);
/* Must precede the first use of pages; false without memory. */
bool hz_freed_make(size_t first, size_t pages);
void hz_freed_put(size_t first, size_t pages, uint32_t now_ms);
/* No page of the first `pages` is dirty any more. */
void hz_freed_forget(size_t pages);
/* The lowest and the highest page of a range around `page` whose pages all have the same time. */
size_t hz_freed_alike_below(size_t page);
size_t hz_freed_alike_above(size_t page);

/* ---- arena.c: the pages and their tables ---------------------------------------------------- */

bool hz_arena_make(void);
/* Makes `pages` more pages usable at the arena's end, from `*first` on; false when the arena is
 * used up or the system refuses. Below them may be a gap, whose pages are in no free run. */
bool hz_arena_extend(size_t pages, size_t *first);
/* Returns the memory of pages to the system. They read as zero, and need hz_arena_reuse before they
 * are written to again. False when the system refuses. */
bool hz_arena_purge(size_t first, size_t pages);
bool hz_arena_reuse(size_t first, size_t pages);
/* Memory for hz's own structs: zeroed, never given back; NULL when the system refuses. */
void *hz_meta_alloc(size_t bytes);
/* Tells the system whether huge pages are wanted there. */
void hz_arena_advise(void *address, size_t bytes);
enum { HZ_HUGE_PAGES = 32 }; /* the first page is a multiple of them: 2 MiB */
/* Makes the HZ_HUGE_PAGES pages from there on resident; false: they are not. */
bool hz_arena_touch_huge(size_t first);

/* Pages from the arena's start that were ever handed out. */
size_t hz_arena_used_pages(void);
void hz_arena_after_fork(void);

/* ==== beside the layers ====================================================================== */

/* ---- start.c -------------------------------------------------------------------------------- */

/* hz_map.shards of them. */
extern hz_shard *hz_shards;
/* Makes hz ready: configuration, arena, hooks. Idempotent; false when there is no memory to start
 * with. */
bool hz_start(void);
/* The parameter, resolved. */
size_t hz_max_dirty_bytes(void);
void hz_start_after_fork(void);
/* HZ_CONTROL=1: whether other processes may ask. */
bool hz_is_controlled(void);

/* ---- heap.c, and heap.h --------------------------------------------------------------------- */

/* Called before hz starts and without a lock, as it may allocate. */
void hz_heap_prepare(void);
void hz_heap_start(uint32_t cpus);
/* Fills the rows of threads without a heap. */
void hz_rows_start(void);
hz_heap *hz_heap_first(void);
/* Heaps that have a thread; at least 1. */
uint32_t hz_heap_count(void);
/* Threads that had a heap and have ended, since the process began. */
uint32_t hz_heap_ended(void);
/* The node that the calling thread's memory comes from: its heap's, else the one it runs on. */
uint32_t hz_heap_node(void);
/* When no thread has ended for decay_ms: empties the warm heaps, and makes a cold one bare; false
 * when it made none so. */
bool hz_heap_decay(void);
/* Moves the blocks in the heaps of ended threads and in the depots to their spans. */
void hz_trim_shared(void);
/* The same, as there is no memory; and those in the calling thread's magazines: once in 64 slow
 * calls, and whenever the program's hook says that it has freed something (`is_second`). */
void hz_trim_in_need(bool is_second);
/* From now on the calling thread has no heap: what it held is lost, or passes on. */
void hz_heap_abandon(void);
void hz_heap_renounce(void);
void hz_heap_after_fork(void);

/* ---- decay.c: memory that was not used for a while ------------------------------------------ */

/* The slow paths call one of these, with no lock held: of a malloc the first, of a free the second.
 * Every 64 such calls of a thread, unused blocks move on towards their spans. Only the second
 * returns pages to the system, so that a realloc, which may be a malloc and a free, does it once.
 */
void hz_tick(hz_heap *heap);
void hz_tick_of_free(hz_heap *heap);
/* Asks the threads of all other heaps to empty their magazines in their next tick. */
void hz_tick_ask(hz_heap *mine);
/* Does a part of the decay that is due; false when nothing is. */
bool hz_decay(void);
/* When all depots were last visited, in ms. */
uint32_t hz_decay_seen_ms(void);
void hz_decay_after_fork(void);

/* ---- rest.c, and rest.h: what a program that rests does not do itself ------------------------ */

/* The calling thread has made a thread of the program. The first brings the background thread. */
void hz_rest_thread_made(const hz_thread_calls *calls);
/* Whether the program has a background thread. */
bool hz_rest_has_thread(void);
/* Ends the background thread and waits until it has ended. */
void hz_rest_end(void);
void hz_rest_after_fork(void);

/* ---- background.c, fork.c, change.c --------------------------------------------------------- */

/* Starts the background thread if background_period_us asks for one and there is none. */
void hz_background_start(void);
void hz_background_end(void);
void hz_background_after_fork(void);
void hz_change_after_fork(void);
/* Registers the handlers of a fork; that of the child repairs hz. */
void hz_fork_start(void);
/* Repairs hz, if this is a child in which that handler did not run yet. */
void hz_fork_notice(void);

/* ---- hooks.c -------------------------------------------------------------------------------- */

/* Tells the program, or stderr; `text` is terminated. */
void hz_message(const char *text, size_t length);
/* Without memory: whether a request should be tried again. */
bool hz_may_get_memory(size_t size);

/* ---- harden.c ------------------------------------------------------------------------------- */

/* Opens malloc's fast path, unless the mode forbids it. */
void hz_fast_path_open(void);
/* The allocation functions and free under `full`. */
void *hz_harden_alloc(size_t size, size_t align);
void hz_harden_free(void *block, uint32_t class_);
/* The bytes that were asked for. */
size_t hz_harden_usable_size(const void *block, uint32_t class_);
/* Ends the program if `size` is not what was asked for. */
void hz_harden_require_size(const void *block, size_t size);
/* Fills a block that is being cut as a free one. */
void hz_harden_cut(void *block, uint32_t class_);
/* Waits for threads that may still check a block of a span that is about to be freed. */
void hz_harden_span_goes(void);
/* Makes a heap's quarantine under `full`, and empties it. */
bool hz_quarantine_make(hz_heap *heap);
void hz_quarantine_empty(hz_heap *heap);

/* ---- guard.c -------------------------------------------------------------------------------- */

/* As hz_pages_alloc and hz_pages_free, under `full` between guards. */
hz_page_info *hz_guard_pages_alloc(size_t pages, size_t align, uint32_t node, bool *zeroed);
void hz_guard_pages_free(hz_page_info *run);
void *hz_guard_alloc(size_t size, size_t align);
/* Fences a large block of this many bytes, the fence included. Comes before the page's entry shows
 * the block: from then on a thread that got a block at this address before may check it. */
void hz_guard_fence(void *block, size_t bytes);
void hz_guard_free(void *block);
size_t hz_guard_asked(const void *block);
/* Whether nothing was written behind a large block; true if another thread has just freed it. */
bool hz_guard_is_whole(const void *block);
/* malloc(0) where it may not be touched. NULL: none is left. False: `block` is not one. */
void *hz_guard_zero(void);
bool hz_guard_is_zero(const void *block);
bool hz_guard_zero_free(void *block);
void hz_guard_after_fork(void);

/* ---- stats.c, counters.h -------------------------------------------------------------------- */

/* Of all threads. */
uint64_t hz_stats_total(hz_stat stat);
void hz_stats_dump(const char *path_pattern);

#pragma GCC visibility pop

#endif
