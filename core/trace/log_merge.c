/*
 * From a log to steps: see log_merge.h.
 */
#include "log_merge.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"

/* A thread of the image. */
typedef struct source {
    hz_log_cursor cursor; /* in its log */
    hz_event event;       /* its next one */
    unsigned rank;     /* of that event among those with the same stamp; the lowest comes first */
    uint64_t creating; /* the spawn of the thread that it is creating, or HZ_NO_STEP */
    bool is_claimed;   /* the spawn of this thread itself is known */
} source;

typedef struct merge {
    hz_resolver *resolver;
    source *sources;       /* all threads of the image */
    uint32_t source_count; /* how many */
    uint32_t *heap;        /* those that have an event; the earliest first */
    uint32_t heap_count;   /* how many */
    hz_lives threads;      /* from a pthread_t to the latest thread that had it */
    hz_lives created; /* from a pthread_t to the spawn of a thread that has logged nothing yet */
} merge;

/* ---- which image ---------------------------------------------------------------------------- */

bool hz_log_next_image(const hz_log *log, hz_log_image *image)
{
    if (image->end == log->frame_count) return false;
    *image = (hz_log_image){.first = image->end, .end = image->end};
    image->number = log->frames[image->first]->image;
    for (; image->end < log->frame_count && log->frames[image->end]->image == image->number;
         image->end++)
        image->bytes += log->frames[image->end]->bytes;
    return true;
}

/* ---- the order ------------------------------------------------------------------------------ */

/* An end comes before an allocation of the same moment: that may be of the same address. */
static unsigned rank_of(unsigned kind)
{
    return hz_trace_ends((hz_trace_kind)kind) || kind == HZ_LOG_MOVING ? 0 : 1;
}

static bool source_is_before(const source *a, const source *b)
{
    if (a->event.stamp != b->event.stamp) return a->event.stamp < b->event.stamp;
    return a->rank < b->rank;
}

static void sink(merge *m, uint32_t at)
{
    for (;;) {
        uint32_t first = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < m->heap_count; child++)
            if (source_is_before(&m->sources[m->heap[child]], &m->sources[m->heap[first]]))
                first = child;
        if (first == at) return;
        const uint32_t other = m->heap[first];
        m->heap[first] = m->heap[at];
        m->heap[at] = other;
        at = first;
    }
}

static bool source_advance(source *from)
{
    if (!hz_log_next(&from->cursor, &from->event)) return false;
    from->rank = rank_of(from->event.kind);
    return true;
}

static void advance_first(merge *m)
{
    if (!source_advance(&m->sources[m->heap[0]])) m->heap[0] = m->heap[--m->heap_count];
    sink(m, 0);
}

/* Whether the first event ends a block which another event of the same moment may give. */
static bool is_too_early(const merge *m, const source *from)
{
    return from->rank == 0 && hz_lives_find(&m->resolver->lives, from->event.address) == HZ_NO_STEP;
}

/* ---- threads -------------------------------------------------------------------------------- */

static void take_spawn(merge *m, uint64_t spawn, uint32_t thread)
{
    m->resolver->steps.at[spawn].size = thread;
    m->sources[thread].is_claimed = true;
}

static void hear_self(merge *m, uint32_t thread, uint64_t self)
{
    (void)hz_lives_take(&m->threads, self);
    hz_lives_put(&m->threads, self, thread);
    const uint64_t spawn = hz_lives_take(&m->created, self);
    if (spawn != HZ_NO_STEP) take_spawn(m, spawn, thread);
}

static void hear_created(merge *m, source *from, uint64_t self)
{
    const uint64_t spawn = from->creating;
    from->creating = HZ_NO_STEP;
    if (self == 0 || spawn == HZ_NO_STEP) return;
    const uint64_t thread = hz_lives_find(&m->threads, self);
    if (thread != HZ_NO_STEP && !m->sources[thread].is_claimed) {
        take_spawn(m, spawn, (uint32_t)thread);
        return;
    }
    (void)hz_lives_take(&m->created, self);
    hz_lives_put(&m->created, self, spawn);
}

static void hear_joined(merge *m, const hz_call *call)
{
    const uint64_t thread = hz_lives_find(&m->threads, call->address);
    if (thread == HZ_NO_STEP) return;
    hz_call join = *call;
    join.kind = HZ_TRACE_JOIN;
    (void)hz_resolve_thread(m->resolver, &join, (uint32_t)thread);
}

/* ---- events --------------------------------------------------------------------------------- */

static void hear(merge *m, uint32_t thread)
{
    source *from = &m->sources[thread];
    hz_call call = {.thread = thread,
                    .kind = (uint8_t)from->event.kind,
                    .align_shift = from->event.align_shift,
                    .time = from->event.stamp,
                    .address = from->event.address,
                    .size = from->event.size};
    switch (from->event.kind) {
    case HZ_LOG_MOVING:
        hz_resolve_moving(m->resolver, &call);
        break;
    case HZ_LOG_MOVED:
        hz_resolve_moved(m->resolver, &call);
        break;
    case HZ_LOG_STAYED:
        hz_resolve_stayed(m->resolver, &call);
        break;
    case HZ_LOG_TOUCHED:
        hz_resolve_touched(m->resolver, &call);
        break;
    case HZ_LOG_SELF:
        hear_self(m, thread, call.address);
        break;
    case HZ_LOG_CREATED:
        hear_created(m, from, call.address);
        break;
    case HZ_LOG_JOINED:
        hear_joined(m, &call);
        break;
    case HZ_LOG_CREATING:
        call.kind = HZ_TRACE_SPAWN;
        from->creating = hz_resolve_thread(m->resolver, &call, UINT32_MAX);
        break;
    default:
        if (!hz_trace_is_known((hz_trace_kind)call.kind)) break;
        if (hz_trace_ends((hz_trace_kind)call.kind))
            hz_resolve_end(m->resolver, &call);
        else
            hz_resolve_give(m->resolver, &call);
    }
}

static void hear_all(merge *m)
{
    while (m->heap_count > 0) {
        const uint32_t thread = m->heap[0];
        source *from = &m->sources[thread];
        if (is_too_early(m, from)) {
            from->rank = 2; /* behind what else happened at its moment */
            sink(m, 0);
            continue;
        }
        hear(m, thread);
        advance_first(m);
    }
}

/* Finds the threads of the image; their frames stand side by side. */
static void find_sources(merge *m, const hz_log *log, const hz_log_image *image)
{
    for (size_t i = image->first; i < image->end;) {
        const hz_log_frame *const *first = &log->frames[i];
        const uint32_t thread = (*first)->thread;
        for (; i < image->end && log->frames[i]->thread == thread; i++) continue;
        const bool is_whole = (*first)->number == 0 && (*first)->start == 0;
        hz_actor *actor = hz_resolver_actor(m->resolver, m->source_count);
        for (const hz_log_frame *const *frame = first; frame != &log->frames[i]; frame++)
            if ((*frame)->name[0] != '\0') memcpy(actor->name, (*frame)->name, sizeof actor->name);
        source *from = &m->sources[m->source_count];
        *from =
            (source){.cursor = {.frame = first, .end = log->frames + i}, .creating = HZ_NO_STEP};
        if (is_whole && source_advance(from)) m->heap[m->heap_count++] = m->source_count;
        m->source_count++;
    }
    for (uint32_t i = m->heap_count; i > 0; i--) sink(m, i - 1);
}

static uint32_t count_threads(const hz_log *log, const hz_log_image *image)
{
    uint32_t count = 1;
    for (size_t i = image->first + 1; i < image->end; i++)
        count += log->frames[i]->thread != log->frames[i - 1]->thread;
    return count;
}

void hz_log_merge(const hz_log *log, const hz_log_image *image, hz_resolver *resolver)
{
    const uint32_t threads = count_threads(log, image);
    merge m = {.resolver = resolver};
    m.sources = calloc(threads, sizeof *m.sources);
    m.heap = calloc(threads, sizeof *m.heap);
    if (m.sources == NULL || m.heap == NULL) hz_fail("no memory for %u threads", threads);
    hz_lives_make(&m.threads);
    hz_lives_make(&m.created);
    find_sources(&m, log, image);
    hear_all(&m);
    hz_resolver_finish(resolver);
    hz_lives_drop(&m.threads);
    hz_lives_drop(&m.created);
    free(m.sources);
    free(m.heap);
}
