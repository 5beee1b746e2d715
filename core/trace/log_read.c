/*
 * From a log to steps: see log_read.h.
 */
#include "log_read.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"

static void read_header(hz_log *log, const char *path)
{
    if (log->size < sizeof log->header) hz_refuse("%s: the file ends in its header", path);
    memcpy(&log->header, log->bytes, sizeof log->header);
    hz_log_header copy = log->header;
    copy.checksum = 0;
    if (copy.version != HZ_LOG_VERSION)
        hz_refuse("%s: a log of version %u; this hztune reads version %d", path, copy.version,
                  HZ_LOG_VERSION);
    if (hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / 8) != log->header.checksum)
        hz_refuse("%s: its header is damaged; record again", path);
}

/* The frame at an offset and its length with what follows it; 0: it is not whole. */
static size_t whole_frame(const hz_log *log, size_t at, const hz_log_frame **frame)
{
    hz_log_frame copy;
    if (log->size - at < sizeof copy) return 0;
    memcpy(&copy, log->bytes + at, sizeof copy);
    const size_t content = ((size_t)copy.bytes + 7) / 8 * 8;
    if (copy.magic != HZ_FRAME_MAGIC || content > log->size - at - sizeof copy) return 0;
    const uint64_t checksum = copy.checksum;
    copy.checksum = 0;
    const uint64_t head = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / 8);
    if (hz_trace_checksum(head, log->bytes + at + sizeof copy, content / 8) != checksum) return 0;
    *frame = (const hz_log_frame *)(const void *)(log->bytes + at);
    return sizeof copy + content;
}

static void add_frame(hz_frames *list, const hz_log_frame *frame)
{
    if (list->count == list->room) {
        list->room = 2 * list->room + 1024;
        list->at = reallocarray(list->at, list->room, sizeof *list->at);
        if (list->at == NULL) hz_fail("no memory for the frames of a log");
    }
    list->at[list->count++] = frame;
}

/* By image, thread, leaf and place in it. */
static int by_place(const void *left, const void *right)
{
    const hz_log_frame *a = *(const hz_log_frame *const *)left;
    const hz_log_frame *b = *(const hz_log_frame *const *)right;
    const uint32_t of_a[] = {a->image, a->thread, a->number, a->start};
    const uint32_t of_b[] = {b->image, b->thread, b->number, b->start};
    size_t i = 0;
    while (i < 3 && of_a[i] == of_b[i]) i++;
    return (of_a[i] > of_b[i]) - (of_a[i] < of_b[i]);
}

void hz_log_read(hz_log *log, const char *path, const unsigned char *bytes, size_t size)
{
    const hz_log_frame *frame;
    size_t length;
    *log = (hz_log){.bytes = bytes, .size = size};
    read_header(log, path);
    for (size_t at = sizeof log->header; (length = whole_frame(log, at, &frame)) != 0;
         at += length) {
        if (frame->kind == HZ_FRAME_EVENTS) {
            add_frame(&log->events, frame);
        } else if (frame->kind == HZ_FRAME_IMAGE) {
            add_frame(&log->images, frame);
        } else if (frame->bytes == sizeof log->end) {
            memcpy(&log->end, frame + 1, sizeof log->end);
            log->is_complete = frame->kind == HZ_FRAME_END;
        }
    }
    if (log->events.count > 0)
        qsort(log->events.at, log->events.count, sizeof *log->events.at, by_place);
}

bool hz_log_next_image(const hz_log *log, hz_log_image *image)
{
    const hz_frames *events = &log->events;
    if (image->end == events->count) return false;
    *image = (hz_log_image){.first = image->end, .end = image->end};
    image->number = events->at[image->first]->image;
    for (; image->end < events->count && events->at[image->end]->image == image->number;
         image->end++)
        image->bytes += events->at[image->end]->bytes;
    return true;
}

/* ---- the events of a thread ----------------------------------------------------------------- */

/* A thread of the image. */
typedef struct source {
    const hz_log_frame *const *frame; /* the one that is read */
    const hz_log_frame *const *end;   /* behind the thread's last one */
    size_t offset;                    /* in that frame */
    hz_call event;                    /* its next one; its kind may be HZ_LOG_... */
    unsigned rank;     /* of that event among those with the same stamp; the lowest comes first */
    uint64_t creating; /* the spawn of the thread that it is creating, or HZ_NO_STEP */
    uint64_t after;    /* steps before its first event; 0: it is known which of them is its spawn */
} source;

/* Goes to the next frame; false when it does not go on where this one ended. */
static bool turn_page(source *from)
{
    const hz_log_frame *old = *from->frame++;
    from->offset = 0;
    if (from->frame == from->end) return false;
    const hz_log_frame *new = *from->frame;
    const bool follows = new->number == old->number
                             ? new->start == old->start + old->bytes
                             : new->number == old->number + 1 && new->start == 0;
    if (!follows) from->frame = from->end;
    return follows;
}

static void unpack(source *from, uint64_t head, uint64_t size)
{
    hz_call *event = &from->event;
    event->kind = (uint8_t)hz_trace_bits(head, 0, HZ_LOG_KIND_BITS);
    event->address = head >> HZ_LOG_ADDRESS_AT << HZ_LOG_ADDRESS_SHIFT;
    const bool is_aligned = hz_log_is_aligned(event->kind);
    event->align_shift = is_aligned ? (uint8_t)hz_trace_bits(size, 0, HZ_LOG_ALIGN_BITS) : 0;
    event->size = is_aligned ? size >> HZ_LOG_ALIGN_BITS : size;
    /* An end comes before an allocation of the same moment: that may be of the same address. */
    from->rank = !hz_trace_ends((hz_trace_kind)event->kind) && event->kind != HZ_LOG_MOVING;
}

/* Reads the next event; false at the end of what is whole. */
static bool source_advance(source *from)
{
    while (from->frame != from->end) {
        const hz_log_frame *frame = *from->frame;
        const unsigned char *at = (const unsigned char *)(frame + 1) + from->offset;
        const size_t left = frame->bytes - from->offset;
        uint64_t head, size = 0, more = 0;
        if (left < sizeof head) {
            if (!turn_page(from)) return false;
            continue;
        }
        memcpy(&head, at, sizeof head);
        if (hz_trace_bits(head, 0, HZ_LOG_KIND_BITS) == HZ_LOG_TIME) {
            from->event.time += head >> HZ_LOG_KIND_BITS;
            from->offset += sizeof head;
            continue;
        }
        const unsigned size_bytes =
            hz_log_size_bytes((unsigned)hz_trace_bits(head, HZ_LOG_SIZE_CODE_AT, 2));
        const unsigned more_bytes = (head >> HZ_LOG_MORE_AT & 1) != 0 ? 2 : 0;
        if (left < sizeof head + size_bytes + more_bytes) return false;
        memcpy(&size, at + sizeof head, size_bytes);
        memcpy(&more, at + sizeof head + size_bytes, more_bytes);
        from->event.time +=
            hz_trace_bits(head, HZ_LOG_DELTA_AT, HZ_LOG_DELTA_BITS) | more << HZ_LOG_DELTA_BITS;
        from->offset += sizeof head + size_bytes + more_bytes;
        unpack(from, head, size);
        return true;
    }
    return false;
}

/* ---- the order ------------------------------------------------------------------------------ */

typedef struct merge {
    hz_resolver *resolver;
    source *sources;       /* all threads of the image */
    uint32_t source_count; /* how many */
    uint32_t *heap;        /* those that have an event; the earliest first */
    uint32_t heap_count;   /* how many */
    hz_lives threads;      /* from a pthread_t to the latest thread that had it */
    hz_lives created; /* from a pthread_t to the spawn of a thread that has logged nothing yet */
} merge;

static bool source_is_before(const source *a, const source *b)
{
    if (a->event.time != b->event.time) return a->event.time < b->event.time;
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

/* ---- threads -------------------------------------------------------------------------------- */

static void take_spawn(merge *m, uint64_t spawn, uint32_t thread)
{
    m->resolver->steps.at[spawn].size = thread;
    m->sources[thread].after = 0;
}

static void hear_self(merge *m, uint32_t thread, uint64_t self)
{
    (void)hz_lives_take(&m->threads, self);
    hz_lives_put(&m->threads, self, thread);
    m->sources[thread].after = m->resolver->steps.count;
    const uint64_t spawn = hz_lives_take(&m->created, self);
    if (spawn != HZ_NO_STEP) take_spawn(m, spawn, thread);
}

static void hear_created(merge *m, source *from, uint64_t self)
{
    const uint64_t spawn = from->creating;
    from->creating = HZ_NO_STEP;
    if (self == 0 || spawn == HZ_NO_STEP) return;
    const uint64_t thread = hz_lives_find(&m->threads, self);
    if (thread != HZ_NO_STEP && m->sources[thread].after > spawn) { /* else it is an older one */
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
    join.size = thread;
    hz_resolve_call(m->resolver, &join);
}

/* ---- events --------------------------------------------------------------------------------- */

static void hear(merge *m, uint32_t thread)
{
    source *from = &m->sources[thread];
    hz_call call = from->event;
    switch (call.kind) {
    case HZ_LOG_MOVING:
        hz_resolve_moving(m->resolver, &call);
        break;
    case HZ_LOG_MOVED:
        hz_resolve_moved(m->resolver, &call);
        break;
    case HZ_LOG_STAYED:
        hz_resolve_stayed(m->resolver, &call);
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
        call.size = UINT32_MAX;
        from->creating = hz_resolve_thread(m->resolver, &call);
        break;
    default:
        if (hz_trace_calls((hz_trace_kind)call.kind) && hz_trace_is_known((hz_trace_kind)call.kind))
            hz_resolve_call(m->resolver, &call);
    }
}

static void hear_all(merge *m)
{
    while (m->heap_count > 0) {
        const uint32_t thread = m->heap[0];
        source *from = &m->sources[thread];
        /* If the first event ends a block which another event of the same moment may give, it goes
           behind what else happened at that moment. */
        if (from->rank == 0 &&
            hz_lives_find(&m->resolver->lives, from->event.address) == HZ_NO_STEP) {
            from->rank = 2;
            sink(m, 0);
            continue;
        }
        hear(m, thread);
        if (!source_advance(&m->sources[m->heap[0]])) m->heap[0] = m->heap[--m->heap_count];
        sink(m, 0);
    }
}

/* Finds the threads of the image; their frames stand side by side. */
static void find_sources(merge *m, const hz_log *log, const hz_log_image *image)
{
    for (size_t i = image->first; i < image->end;) {
        const hz_log_frame *const *first = &log->events.at[i];
        const uint32_t thread = (*first)->thread;
        for (; i < image->end && log->events.at[i]->thread == thread; i++) continue;
        const bool is_whole = (*first)->number == 0 && (*first)->start == 0;
        hz_actor *actor = hz_resolver_actor(m->resolver, m->source_count);
        for (const hz_log_frame *const *frame = first; frame != &log->events.at[i]; frame++)
            if ((*frame)->name[0] != '\0') memcpy(actor->name, (*frame)->name, sizeof actor->name);
        source *from = &m->sources[m->source_count];
        *from = (source){.frame = first,
                         .end = log->events.at + i,
                         .event.thread = m->source_count,
                         .creating = HZ_NO_STEP};
        if (is_whole && source_advance(from)) m->heap[m->heap_count++] = m->source_count;
        m->source_count++;
    }
    for (uint32_t i = m->heap_count; i > 0; i--) sink(m, i - 1);
}

static uint32_t count_threads(const hz_log *log, const hz_log_image *image)
{
    uint32_t count = 1;
    for (size_t i = image->first + 1; i < image->end; i++)
        count += log->events.at[i]->thread != log->events.at[i - 1]->thread;
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
