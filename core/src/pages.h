/*
 * The page pool's state, for pages.c, which keeps it, sweep.c, which takes pages out of it to be
 * purged, and repair.c, which makes it anew in the child of a fork. Included by these only.
 */
#ifndef HZ_PAGES_H
#define HZ_PAGES_H

#include "internal.h"

enum { HZ_RUN_LISTS = HZ_WORD_BITS }; /* a bit of `filled` for each */

/* Free runs of one state, by length. */
typedef struct hz_run_lists {
    hz_page_info *first[HZ_RUN_LISTS]; /* doubly linked through next and previous */
    uint64_t filled;                   /* a bit for each list that is not empty */
} hz_run_lists;

typedef struct hz_page_pool_t {
    hz_lock lock; /* guards the rest, and the infos of free runs */
    hz_run_lists clean;
    hz_page_info *purging; /* runs that threads are purging just now */
    hz_page_info *gaps;    /* the last page of each gap in the arena, from the highest down */
    _Atomic size_t dirty_pages;
    size_t top;         /* one past the highest page that came from the arena */
    hz_lock extending;  /* held while the arena is extended, and taken before `lock` */
    uintptr_t survivor; /* after a fork: the thread that goes on, see hz_lock_me, until the purges
                           of all others were ended; else 0 */
    bool is_refused;    /* whether the system last refused to take pages back */
    size_t huge_pages;   /* of all huge pages that were taken */
    uintptr_t asker;     /* the thread that is asking for one, see hz_lock_me; 0: none is */
    hz_page_info *asked; /* the one that it is making resident, or NULL */
    hz_page_info *lost;  /* after a fork: what another thread was making resident, or NULL */
    hz_page_info *huge[HZ_NODES_MAX]; /* what is left of a huge page, or NULL, by node */
    hz_run_lists dirty[HZ_NODES_MAX]; /* by node; last, as a machine seldom has more than one */
} hz_page_pool_t;

#pragma GCC visibility push(hidden)

extern hz_page_pool_t hz_page_pool;

/* The caller of each of these holds the lock. */

/* Lists pages as free and joins them with free neighbours of the same state and node. Clean pages
 * read as zero; dirty ones lie in the memory of `node` and were freed at `now_ms`. */
void hz_run_list_clean(size_t first, size_t pages);
void hz_run_list_dirty(size_t first, size_t pages, uint32_t node, uint32_t now_ms);
/* Writes a run into the infos of its pages; both ends of it bear its state and its node. */
hz_page_info *hz_run_mark(size_t first, size_t pages, hz_run_state state, uint32_t node);
/* Makes a run in use longer or shorter. The child of a fork finds the old length or the new one. */
void hz_run_resize(hz_page_info *run, size_t pages);
/* The dirty run that a page lies in. */
hz_page_info *hz_run_around(size_t page);
/* Takes [first, first + pages) out of a free run that contains it; what is left over stays free,
 * and as old as it was. */
hz_page_info *hz_run_split(hz_page_info *run, size_t first, size_t pages);
/* Ends the purges that a fork interrupted, of threads that the child does not have. */
void hz_purging_end_lost(void);

#pragma GCC visibility pop

#endif
