/*
 * A walk through a trace: see walk.h.
 *
 * A slot or a cell holds the number of its block; in a rehearsal, which needs no order, the block's
 * size with one added. So 0 is an empty one, and a replay takes over the memory. One thread goes
 * on until it has to wait, or another one is earlier; whatever ends a wait makes the thread ready.
 */
#include "walk.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "arguments.h"
#include "bench.h"

enum { ALIGN_SHIFT_MAX = 40, SYSTEM_PAGE = 4096 };

/* What a thread is about. */
typedef enum actor_state { NOT_BORN, READY, AT_CELL, AT_JOIN, ENDED } actor_state;

/* A thread on the walk. */
typedef struct walker {
    const uint64_t *word;         /* behind its next operation */
    const uint64_t *stop;         /* of the chunk's words */
    hz_trace_operation operation; /* its next one */
    uint64_t time_ns;             /* of that, from the start of the trace */
    uint64_t *slots;              /* what is in each */
    uint32_t chunk;               /* chunks that it has begun */
    uint32_t waits_for;           /* the cell, or the thread */
    actor_state state;
} walker;

struct hz_walk {
    hz_rehearsed made; /* what a replay needs */
    const hz_trace *trace;
    walker *walkers;      /* one for each thread */
    uint64_t *cells;      /* what is in each */
    uint32_t *ready;      /* a heap: threads that can go on, the earliest first */
    uint32_t ready_count; /* how many */
    uint32_t current;     /* the one that goes on, beside them, or HZ_TRACE_NO_THREAD */
    uint64_t blocks;      /* given so far */
    uint64_t calls;       /* operations so far that call the allocator */
    uint64_t told_ns;     /* the latest time that was told: rounded ones may go back */
    bool is_rehearsal;
};

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE;
}

/* Zeroed memory that stays, past the allocator; for a rehearsal all of it is resident at once. */
static void *own(hz_walk *walk, uint64_t bytes)
{
    if (bytes == 0) return NULL;
    void *memory = hz_harness_alloc(bytes);
    if (walk->is_rehearsal) memset(memory, 0, bytes);
    walk->made.own_bytes += whole_pages(bytes);
    return memory;
}

static _Noreturn void refuse_operation(const hz_walk *walk, uint32_t thread, const char *why)
{
    const walker *w = &walk->walkers[thread];
    const uint32_t place = walk->trace->threads[thread].first_place + w->chunk - 1;
    const uint64_t *start = w->stop - walk->trace->places[place].word_count;
    hz_refuse("%s cannot be replayed: thread %" PRIu32 ", word %td of chunk %" PRIu32
              ": %s; what wrote the file is at fault",
              walk->trace->path, thread, w->word - start - 1, w->chunk - 1, why);
}

static inline void want(const hz_walk *walk, uint32_t thread, bool holds, const char *why)
{
    if (HZ_UNLIKELY(!holds)) refuse_operation(walk, thread, why);
}

/* ---- which thread --------------------------------------------------------------------------- */

static bool is_earlier(const hz_walk *walk, uint32_t a, uint32_t b)
{
    const uint64_t a_ns = walk->walkers[a].time_ns, b_ns = walk->walkers[b].time_ns;
    return a_ns != b_ns ? a_ns < b_ns : a < b;
}

static void ready_push(hz_walk *walk, uint32_t thread)
{
    uint32_t at = walk->ready_count++;
    for (; at > 0 && is_earlier(walk, thread, walk->ready[(at - 1) / 2]); at = (at - 1) / 2)
        walk->ready[at] = walk->ready[(at - 1) / 2];
    walk->ready[at] = thread;
}

static uint32_t ready_pop(hz_walk *walk)
{
    const uint32_t first = walk->ready[0];
    const uint32_t moved = walk->ready[--walk->ready_count];
    uint32_t at = 0;
    for (uint32_t child; (child = 2 * at + 1) < walk->ready_count; at = child) {
        if (child + 1 < walk->ready_count &&
            is_earlier(walk, walk->ready[child + 1], walk->ready[child]))
            child++;
        if (!is_earlier(walk, walk->ready[child], moved)) break;
        walk->ready[at] = walk->ready[child];
    }
    walk->ready[at] = moved;
    return first;
}

/* The thread whose turn it is; HZ_TRACE_NO_THREAD when none can go on. */
static uint32_t next_thread(hz_walk *walk)
{
    if (walk->current != HZ_TRACE_NO_THREAD) {
        if (walk->is_rehearsal || walk->ready_count == 0 ||
            !is_earlier(walk, walk->ready[0], walk->current))
            return walk->current;
        ready_push(walk, walk->current);
    }
    walk->current = walk->ready_count > 0 ? ready_pop(walk) : HZ_TRACE_NO_THREAD;
    return walk->current;
}

/* Reads a thread's next operation; false at its end. */
static inline bool read_operation(hz_walk *walk, uint32_t thread)
{
    walker *w = &walk->walkers[thread];
    const hz_trace_thread *about = &walk->trace->threads[thread];
    while (w->word == w->stop) {
        if (w->chunk == about->chunk_count) return false;
        const hz_trace_place *place = &walk->trace->places[about->first_place + w->chunk++];
        const void *chunk = walk->trace->bytes + place->offset;
        w->word = hz_trace_words(walk->trace, place, &w->stop);
        w->time_ns = ((const hz_trace_chunk *)chunk)->start_ns;
    }
    const bool is_wide = (*w->word >> HZ_TRACE_WIDE_AT & 1) != 0;
    want(walk, thread, !is_wide || w->stop - w->word > 1, "an operation is cut");
    w->word = hz_trace_unpack(w->word, &w->operation);
    w->time_ns += w->operation.delta_ns;
    return true;
}

static void go_on(hz_walk *walk, uint32_t thread)
{
    walk->walkers[thread].state = READY;
    ready_push(walk, thread);
}

static void walker_end(hz_walk *walk, uint32_t thread)
{
    walk->walkers[thread].state = ENDED;
    const uint32_t joiner = walk->made.parts[thread].joiner;
    if (joiner == HZ_TRACE_NO_THREAD) return;
    const walker *w = &walk->walkers[joiner];
    if (w->state == AT_JOIN && w->waits_for == thread) go_on(walk, joiner);
}

static void walker_begin(hz_walk *walk, uint32_t thread)
{
    if (read_operation(walk, thread))
        go_on(walk, thread);
    else
        walker_end(walk, thread);
}

static void walk_spawn(hz_walk *walk, uint32_t thread, uint32_t child)
{
    want(walk, thread, child < walk->trace->header->thread_count,
         "it starts a thread that is not there");
    want(walk, thread, walk->walkers[child].state == NOT_BORN,
         "it starts a thread that has started");
    walker_begin(walk, child);
}

/* The thread has to wait; its operation comes again. */
static bool wait_for_change(hz_walk *walk, uint32_t thread, actor_state state, uint32_t what)
{
    walk->walkers[thread].state = state;
    walk->walkers[thread].waits_for = what;
    return false;
}

static bool walk_join(hz_walk *walk, uint32_t thread, uint32_t other)
{
    want(walk, thread, other < walk->trace->header->thread_count && other != thread,
         "it waits for a thread that is not there");
    uint32_t *joiner = &walk->made.parts[other].joiner;
    want(walk, thread, *joiner == HZ_TRACE_NO_THREAD || *joiner == thread,
         "it waits for a thread that another one waits for");
    *joiner = thread;
    return walk->walkers[other].state == ENDED || wait_for_change(walk, thread, AT_JOIN, other);
}

/* ---- slots and cells ------------------------------------------------------------------------ */

/* A slot that is full, or one that is empty. */
static inline uint64_t *find_slot(hz_walk *walk, uint32_t thread, uint32_t slot, bool is_full)
{
    want(walk, thread, slot < walk->trace->threads[thread].slot_count,
         "it uses a slot that is not there");
    uint64_t *at = &walk->walkers[thread].slots[slot];
    want(walk, thread, (*at != 0) == is_full,
         is_full ? "the slot is empty" : "the slot is full already");
    return at;
}

/*
 * Puts `value` into a cell, or takes what is in it and puts 0 there; false: the thread waits. A
 * partner that waits for the change can go on.
 */
static bool use_cell(hz_walk *walk, uint32_t thread, uint64_t cell, bool fills, uint64_t *value)
{
    want(walk, thread, cell < walk->trace->header->cell_count, "it uses a cell that is not there");
    hz_trace_pair *pair = &walk->made.pairs[cell / HZ_TRACE_CELLS_A_GROUP];
    uint32_t *role = fills ? &pair->giver : &pair->taker;
    const uint32_t partner = fills ? pair->taker : pair->giver;
    if (*role == HZ_TRACE_NO_THREAD) *role = thread;
    want(walk, thread, *role == thread, "it uses a cell of other threads");
    if ((walk->cells[cell] != 0) == fills)
        return wait_for_change(walk, thread, AT_CELL, (uint32_t)cell);
    const uint64_t taken = walk->cells[cell];
    walk->cells[cell] = fills ? *value : 0;
    if (!fills) *value = taken;
    if (partner == HZ_TRACE_NO_THREAD) return true;
    const walker *w = &walk->walkers[partner];
    if (w->state == AT_CELL && w->waits_for == cell) go_on(walk, partner);
    return true;
}

/* ---- operations ----------------------------------------------------------------------------- */

static bool walk_give(hz_walk *walk, uint32_t thread, const hz_trace_operation *op, uint64_t *value)
{
    *value = walk->is_rehearsal ? op->size + 1 : walk->blocks + 1;
    if (!op->is_cell)
        *find_slot(walk, thread, op->operand, false) = *value;
    else if (!use_cell(walk, thread, op->operand, true, value))
        return false;
    walk->blocks++;
    return true;
}

static bool walk_end(hz_walk *walk, uint32_t thread, const hz_trace_operation *op, uint64_t *value)
{
    if (op->is_cell) {
        if (!use_cell(walk, thread, op->operand, false, value)) return false;
    } else {
        uint64_t *slot = find_slot(walk, thread, op->operand, true);
        *value = *slot;
        *slot = 0;
    }
    want(walk, thread, !walk->is_rehearsal || *value == op->size + 1,
         "a block ends with another size than it was asked for with");
    return true;
}

static void walk_realloc(hz_walk *walk, uint32_t thread, const hz_trace_operation *op,
                         uint64_t *value)
{
    uint64_t *slot = find_slot(walk, thread, op->operand, true);
    hz_trace_part *part = &walk->made.parts[thread];
    *value = *slot;
    if (!walk->is_rehearsal) return;
    want(walk, thread, !op->is_cell && op->size > 0, "it is no legal realloc");
    part->old_sizes[part->realloc_count++] = *slot - 1;
    *slot = op->size + 1;
}

/* Moves a block between a slot and a cell. */
static bool walk_move(hz_walk *walk, uint32_t thread, const hz_trace_operation *op)
{
    const bool fills = op->kind == HZ_TRACE_HAND;
    uint64_t *slot = find_slot(walk, thread, op->operand, fills);
    if (!use_cell(walk, thread, op->size, fills, slot)) return false;
    if (fills) *slot = 0;
    return true;
}

/* Does a thread's next operation, with the block's `value`; false: the thread waits. */
static bool walk_operation(hz_walk *walk, uint32_t thread, uint64_t *value)
{
    const hz_trace_operation *op = &walk->walkers[thread].operation;
    want(walk, thread, hz_trace_is_known(op->kind), "it has an operation of an unknown kind");
    want(walk, thread, op->align_shift <= ALIGN_SHIFT_MAX, "it has an alignment that cannot be");
    switch (op->kind) {
    case HZ_TRACE_REALLOC:
        return walk_realloc(walk, thread, op, value), true;
    case HZ_TRACE_FETCH:
    case HZ_TRACE_HAND:
        return walk_move(walk, thread, op);
    case HZ_TRACE_SPAWN:
        return walk_spawn(walk, thread, op->operand), true;
    case HZ_TRACE_JOIN:
        return walk_join(walk, thread, op->operand);
    default:
        return hz_trace_gives(op->kind) ? walk_give(walk, thread, op, value)
                                        : walk_end(walk, thread, op, value);
    }
}

/* ---- from the beginning to the end ---------------------------------------------------------- */

/* The slots of a thread are as many as it has words at most. */
static void prepare_thread(hz_walk *walk, uint32_t thread)
{
    const hz_trace_thread *about = &walk->trace->threads[thread];
    hz_trace_part *part = &walk->made.parts[thread];
    if (about->slot_count > about->word_count)
        hz_refuse("%s cannot be replayed: thread %" PRIu32 " has more slots than operations",
                  walk->trace->path, thread);
    part->slots = own(walk, about->slot_count * (uint64_t)sizeof *part->slots);
    part->joiner = HZ_TRACE_NO_THREAD;
    walk->walkers[thread].slots = (void *)part->slots;
    /* Untouched but for the reallocs that there are. */
    if (walk->is_rehearsal && about->word_count > 0)
        part->old_sizes = hz_harness_alloc(about->word_count * sizeof(uint64_t));
}

static void walk_prepare(hz_walk *walk)
{
    const hz_trace_header *header = walk->trace->header;
    const uint64_t threads = header->thread_count;
    const uint64_t groups =
        ((uint64_t)header->cell_count + HZ_TRACE_CELLS_A_GROUP - 1) / HZ_TRACE_CELLS_A_GROUP;
    if (header->cell_count > header->file_bytes) /* each is used by two words of 8 bytes or more */
        hz_refuse("%s cannot be replayed: it has more cells than operations", walk->trace->path);
    walk->current = HZ_TRACE_NO_THREAD;
    walk->made.parts = own(walk, threads * sizeof *walk->made.parts);
    walk->made.pairs = own(walk, groups * sizeof *walk->made.pairs);
    walk->cells = own(walk, header->cell_count * sizeof *walk->cells);
    walk->made.cells = (void *)walk->cells;
    for (uint64_t i = 0; i < groups; i++)
        walk->made.pairs[i] = (hz_trace_pair){HZ_TRACE_NO_THREAD, HZ_TRACE_NO_THREAD};
    walk->walkers = hz_harness_alloc(threads * sizeof *walk->walkers + 1);
    walk->ready = hz_harness_alloc(threads * sizeof *walk->ready + 1);
    for (uint32_t i = 0; i < threads; i++) prepare_thread(walk, i);
    for (uint32_t i = 0; i < threads; i++)
        if (walk->trace->threads[i].waits_for_spawn == 0) walker_begin(walk, i);
}

static void check_end(const hz_walk *walk)
{
    for (uint32_t i = 0; i < walk->trace->header->thread_count; i++) {
        if (walk->walkers[i].state == NOT_BORN)
            hz_refuse("%s cannot be replayed: nothing starts thread %" PRIu32, walk->trace->path,
                      i);
        if (walk->walkers[i].state != ENDED)
            hz_refuse("%s cannot be replayed: thread %" PRIu32 " waits for ever", walk->trace->path,
                      i);
    }
}

/* Does the next operation, whatever it is, and tells it in `next`, if that is not NULL. */
static inline bool walk_on(hz_walk *walk, hz_ordered *next)
{
    for (uint32_t thread; (thread = next_thread(walk)) != HZ_TRACE_NO_THREAD;) {
        walker *w = &walk->walkers[thread];
        uint64_t value = 0;
        const bool is_done = walk_operation(walk, thread, &value);
        if (is_done) {
            walk->calls += hz_trace_calls(w->operation.kind);
            if (walk->told_ns < w->time_ns) walk->told_ns = w->time_ns;
            if (next != NULL) *next = (hz_ordered){thread, w->operation, walk->told_ns, value};
            if (read_operation(walk, thread)) return true;
            walker_end(walk, thread);
        }
        walk->current = HZ_TRACE_NO_THREAD;
        if (is_done) return true;
    }
    check_end(walk);
    return false;
}

hz_walk *hz_walk_make(const hz_trace *trace)
{
    hz_walk *walk = hz_harness_alloc(sizeof *walk);
    walk->trace = trace;
    walk_prepare(walk);
    return walk;
}

bool hz_walk_next(hz_walk *walk, hz_ordered *next)
{
    while (walk_on(walk, next))
        if (hz_trace_calls(next->operation.kind) || hz_trace_is_of_thread(next->operation.kind))
            return true;
    return false;
}

/* ---- the rehearsal -------------------------------------------------------------------------- */

/* Empties a slot or a cell at the end, and counts what was left in it. */
static void count_left(uint64_t *at, uint64_t *count, uint64_t *bytes)
{
    *count += *at != 0;
    *bytes += *at != 0 ? *at - 1 : 0;
    *at = 0;
}

/* What stays at the end is counted; slots and cells become empty. */
static void count_all_left(hz_walk *walk)
{
    const hz_trace_header *header = walk->trace->header;
    hz_rehearsed *made = &walk->made;
    for (uint32_t i = 0; i < header->thread_count; i++) {
        hz_trace_part *part = &made->parts[i];
        for (uint32_t j = 0; j < walk->trace->threads[i].slot_count; j++)
            count_left(&walk->walkers[i].slots[j], &part->left_count, &part->left_bytes);
        made->own_bytes += whole_pages(part->realloc_count * sizeof(uint64_t));
    }
    for (uint32_t i = 0; i < header->cell_count; i++)
        count_left(&walk->cells[i], &made->left_in_cells, &made->left_bytes);
}

hz_rehearsed hz_rehearse(const char *path)
{
    hz_walk walk = {.is_rehearsal = true};
    const hz_file_bytes file = hz_read_file(path);
    hz_trace_read(&walk.made.trace, path, &file);
    walk.trace = &walk.made.trace;
    const hz_trace_header *header = walk.trace->header;
    if (header->thread_count == 0 || header->thread_count > HZ_TURNS_MAX_THREADS)
        hz_refuse("%s has %" PRIu32 " threads, and a replay takes from 1 to %d of them", path,
                  header->thread_count, HZ_TURNS_MAX_THREADS);
    walk.made.own_bytes = whole_pages(header->file_bytes);
    walk_prepare(&walk);
    while (walk_on(&walk, NULL)) continue;
    if (walk.calls != header->call_count || walk.calls == 0)
        hz_refuse("%s cannot be replayed: it has %" PRIu64 " calls and says %" PRIu64, path,
                  walk.calls, header->call_count);
    count_all_left(&walk);
    (void)munmap(walk.walkers, header->thread_count * sizeof *walk.walkers + 1);
    (void)munmap(walk.ready, header->thread_count * sizeof *walk.ready + 1);
    return walk.made;
}
