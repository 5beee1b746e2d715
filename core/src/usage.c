/*
 * How much memory the program has, and how much hz. The fast paths count nothing for it: a call
 * visits the pages in use and every place where free blocks wait. The result is exact while the
 * other threads are at rest, and close to that while they are not.
 */
#include "account.h"
#include "internal.h"

/* Other threads may write what is read here; that is no error. */
#define AT_REST __attribute__((no_sanitize("thread")))

/* ---- pages in use --------------------------------------------------------------------------- */

AT_REST static void count_run(hz_survey *survey, const hz_page_info *run)
{
    const size_t bytes = (size_t)run->pages << HZ_PAGE_SHIFT;
    if (run->class_ == HZ_CLASS_LARGE) {
        survey->large_blocks++;
        survey->large_bytes += bytes;
    } else if (run->class_ <= HZ_CLASSES) {
        survey->cut[run->class_] += run->cut;
        survey->shared[run->class_] += run->free_count;
        survey->span_bytes += bytes;
    }
}

/* The first page of each run that holds blocks has a step; other pages of a span may have one. */
AT_REST static void count_runs(hz_survey *survey)
{
    const size_t end = hz_arena_used_pages();
    for (size_t page = 0, pages; page < end; page += pages) {
        const hz_page_info *run = &hz_map.infos[page]; /* may be read where there is a step */
        const bool is_first = hz_atomic_peek(&hz_entry_at(hz_page_address(page))->step) != 0 &&
                              (run->class_ == HZ_CLASS_LARGE || run->head == page);
        pages = is_first && run->pages > 0 ? run->pages : 1;
        if (is_first) count_run(survey, run);
    }
}

/* ---- places where free blocks wait ---------------------------------------------------------- */

AT_REST static void count_waiting_block(hz_survey *survey, const void *block)
{
    const uint32_t class_ = hz_class_at(block);
    if (class_ == HZ_CLASS_LARGE) {
        survey->large_blocks--;
        survey->large_bytes -= hz_large_bytes(block);
        survey->deferred_bytes += hz_large_bytes(block);
    } else if (class_ != HZ_CLASS_NONE) {
        survey->cached[class_]++;
    }
}

/* Blocks whose free is deferred, or which wait in the quarantine, where places may be empty. */
AT_REST static void count_waiting(hz_survey *survey, const hz_heap *heap)
{
    for (uint32_t i = 0; i < heap->deferred_count; i++)
        count_waiting_block(survey, heap->deferred[i]);
    for (int64_t i = 0; heap->quarantine != NULL && i < hz_cfg.quarantine_blocks; i++)
        if (heap->quarantine[i] != NULL) count_waiting_block(survey, heap->quarantine[i]);
}

/* A span counts the blocks of a lease as cut. */
AT_REST static void count_heap(hz_survey *survey, const hz_heap *heap)
{
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        survey->cached[class_] += hz_magazine_count(heap, class_);
        if (heap->magazines[class_] != NULL)
            survey->cut[class_] -= heap->magazines[class_]->lease.blocks;
    }
    hz_remote_count(heap, survey->cached);
    count_waiting(survey, heap);
}

static void count_shard(hz_survey *survey, uint32_t shard)
{
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++)
        survey->shared[class_] += hz_atomic_peek(&hz_shards[shard].depots[class_].count);
    hz_inbox_count(shard, survey->shared);
}

/* ---- the sum -------------------------------------------------------------------------------- */

size_t hz_survey_live(const hz_survey *survey, uint32_t class_)
{
    return survey->cut[class_] - survey->cached[class_] - survey->shared[class_];
}

static size_t at_most(size_t most, size_t count)
{
    return count < most ? count : most;
}

static size_t at_least_zero(size_t count)
{
    return count <= PTRDIFF_MAX ? count : 0;
}

/* The parts were counted one after the other, while other threads may have moved blocks from one to
 * the next: no part is below zero or larger than the whole. */
static void survey_settle(hz_survey *survey)
{
    survey->large_blocks = at_least_zero(survey->large_blocks);
    survey->large_bytes = at_least_zero(survey->large_bytes);
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        const size_t cut = survey->cut[class_] = at_least_zero(survey->cut[class_]);
        const size_t cached = survey->cached[class_] = at_most(cut, survey->cached[class_]);
        survey->shared[class_] = at_most(cut - cached, survey->shared[class_]);
    }
}

void hz_survey_of_heap(hz_survey *survey, const hz_heap *heap)
{
    memset(survey, 0, sizeof *survey);
    count_heap(survey, heap);
}

bool hz_survey_make(hz_survey *survey)
{
    memset(survey, 0, sizeof *survey);
    if (!hz_start()) return false;
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next)
        count_heap(survey, heap);
    for (uint32_t shard = 0; shard < hz_map.shards; shard++) count_shard(survey, shard);
    count_runs(survey);
    survey_settle(survey);
    survey->unused_bytes = hz_pages_dirty() << HZ_PAGE_SHIFT;
    return true;
}

hz_usage hz_survey_usage(const hz_survey *survey)
{
    hz_usage usage = {
        .committed_bytes = hz_stats_total(HZ_STAT_committed_bytes),
        .free_bytes = survey->unused_bytes,
        .live_bytes = survey->large_bytes,
        .live_blocks = survey->large_blocks,
        .held_bytes = survey->span_bytes + survey->large_bytes + survey->deferred_bytes +
                      survey->unused_bytes,
    };
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        const size_t bytes = hz_class_bytes[class_], live = hz_survey_live(survey, class_);
        usage.live_blocks += live;
        usage.live_bytes += live * bytes;
        usage.cached_blocks += survey->cached[class_];
        usage.cached_bytes += survey->cached[class_] * bytes;
        usage.shared_blocks += survey->shared[class_];
    }
    return usage;
}

hz_usage hz_usage_now(void)
{
    hz_survey survey;
    (void)hz_survey_make(&survey);
    return hz_survey_usage(&survey);
}
