/*
 * The rehearsal: see rehearse.h.
 *
 * Slots and cells hold sizes meanwhile, each with one added, so that 0 is an empty one; no second
 * set of them is needed. A thread goes on until it has to wait; whatever ends the wait puts it on
 * the list of those that can go on.
 */
#include "rehearse.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "arguments.h"
#include "bench.h"

enum { ALIGN_SHIFT_MAX = 40, SYSTEM_PAGE = 4096 };

/* What a thread is about. */
typedef enum actor_state { NOT_BORN, READY, AT_CELL, AT_JOIN, ENDED } actor_state;

/* A thread of the rehearsal. */
typedef struct actor {
    const uint64_t *at;  /* the next word */
    const uint64_t *end; /* of the chunk's words */
    uint64_t *old_sizes; /* those that were found */
    uint64_t *slots;     /* size + 1 of what is in each */
    uint32_t chunk;      /* chunks that it has begun */
    uint32_t waits_for;  /* the cell, or the thread */
    actor_state state;
} actor;

typedef struct rehearsal {
    hz_rehearsed *made;    /* what it is for */
    const hz_trace *trace; /* short for made->trace */
    actor *actors;         /* one for each thread */
    uint64_t *cells;       /* size + 1 of what is in each */
    uint32_t *ready;       /* threads that can go on */
    uint32_t ready_count;  /* how many */
    uint64_t calls;        /* operations so far that call the allocator */
} rehearsal;

/* ---- memory --------------------------------------------------------------------------------- */

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE;
}

/* Zeroed memory that stays; all of it is resident at once. */
static void *own(hz_rehearsed *made, uint64_t bytes)
{
    if (bytes == 0) return NULL;
    void *memory = hz_harness_alloc(bytes);
    memset(memory, 0, bytes);
    made->own_bytes += whole_pages(bytes);
    return memory;
}

/* ---- what can be wrong ---------------------------------------------------------------------- */

static _Noreturn void refuse_operation(const rehearsal *r, uint32_t thread, const char *why)
{
    hz_refuse(
        "%s cannot be replayed: thread %" PRIu32 ", word %td of chunk %" PRIu32
        ": %s; what wrote the file is at fault",
        r->trace->path, thread,
        r->actors[thread].at -
            (r->actors[thread].end -
             r->trace->places[r->trace->threads[thread].first_place + r->actors[thread].chunk - 1]
                 .word_count),
        r->actors[thread].chunk - 1, why);
}

static void want(const rehearsal *r, uint32_t thread, bool holds, const char *why)
{
    if (HZ_UNLIKELY(!holds)) refuse_operation(r, thread, why);
}

/* ---- threads -------------------------------------------------------------------------------- */

static void go_on(rehearsal *r, uint32_t thread)
{
    r->actors[thread].state = READY;
    r->ready[r->ready_count++] = thread;
}

static bool rehearse_next_chunk(rehearsal *r, uint32_t thread)
{
    actor *a = &r->actors[thread];
    const hz_trace_thread *about = &r->trace->threads[thread];
    if (a->chunk == about->chunk_count) return false;
    a->at = hz_trace_words(r->trace, &r->trace->places[about->first_place + a->chunk], &a->end);
    a->chunk++;
    return true;
}

static void rehearse_spawn(rehearsal *r, uint32_t thread, uint32_t child)
{
    want(r, thread, child < r->trace->header->thread_count, "it starts a thread that is not there");
    want(r, thread, r->actors[child].state == NOT_BORN, "it starts a thread that has started");
    go_on(r, child);
}

/* Whether the other thread has ended; otherwise this one waits. */
static bool join(rehearsal *r, uint32_t thread, uint32_t other)
{
    want(r, thread, other < r->trace->header->thread_count && other != thread,
         "it waits for a thread that is not there");
    uint32_t *joiner = &r->made->parts[other].joiner;
    want(r, thread, *joiner == HZ_TRACE_NO_THREAD || *joiner == thread,
         "it waits for a thread that another one waits for");
    *joiner = thread;
    if (r->actors[other].state == ENDED) return true;
    r->actors[thread].state = AT_JOIN;
    r->actors[thread].waits_for = other;
    return false;
}

static void rehearse_end(rehearsal *r, uint32_t thread)
{
    r->actors[thread].state = ENDED;
    const uint32_t joiner = r->made->parts[thread].joiner;
    if (joiner == HZ_TRACE_NO_THREAD) return;
    const actor *a = &r->actors[joiner];
    if (a->state == AT_JOIN && a->waits_for == thread) go_on(r, joiner);
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* A cell that this thread fills or empties; another cannot be its partner's role. */
static uint64_t *find_cell(rehearsal *r, uint32_t thread, uint64_t cell, bool fills)
{
    want(r, thread, cell < r->trace->header->cell_count, "it uses a cell that is not there");
    hz_trace_pair *pair = &r->made->pairs[cell / HZ_TRACE_CELLS_A_GROUP];
    uint32_t *role = fills ? &pair->giver : &pair->taker;
    if (*role == HZ_TRACE_NO_THREAD) *role = thread;
    want(r, thread, *role == thread, "it uses a cell of other threads");
    return &r->cells[cell];
}

/* The cell has changed: the partner that waits for it can go on. */
static void tell_partner(rehearsal *r, uint64_t cell, bool filled)
{
    const hz_trace_pair *pair = &r->made->pairs[cell / HZ_TRACE_CELLS_A_GROUP];
    const uint32_t partner = filled ? pair->taker : pair->giver;
    if (partner == HZ_TRACE_NO_THREAD) return;
    const actor *a = &r->actors[partner];
    if (a->state == AT_CELL && a->waits_for == cell) go_on(r, partner);
}

static bool wait_at(rehearsal *r, uint32_t thread, uint64_t cell)
{
    r->actors[thread].state = AT_CELL;
    r->actors[thread].waits_for = (uint32_t)cell;
    return false;
}

/* Puts a block of `size` bytes into a cell; false: it is full, and the thread waits. */
static bool rehearse_fill(rehearsal *r, uint32_t thread, uint64_t cell, uint64_t size)
{
    uint64_t *at = find_cell(r, thread, cell, true);
    if (*at != 0) return wait_at(r, thread, cell);
    *at = size + 1;
    tell_partner(r, cell, true);
    return true;
}

/* Takes the block out of a cell; false: it is empty, and the thread waits. */
static bool rehearse_take_out(rehearsal *r, uint32_t thread, uint64_t cell, uint64_t *size)
{
    uint64_t *at = find_cell(r, thread, cell, false);
    if (*at == 0) return wait_at(r, thread, cell);
    *size = *at - 1;
    *at = 0;
    tell_partner(r, cell, false);
    return true;
}

/* A slot that is full, or one that is empty. */
static uint64_t *find_slot(rehearsal *r, uint32_t thread, uint32_t slot, bool is_full)
{
    want(r, thread, slot < r->trace->threads[thread].slot_count,
         "it uses a slot that is not there");
    uint64_t *at = &r->actors[thread].slots[slot];
    want(r, thread, (*at != 0) == is_full,
         is_full ? "the slot is empty" : "the slot is full already");
    return at;
}

/* ---- operations ----------------------------------------------------------------------------- */

static bool rehearse_give(rehearsal *r, uint32_t thread, const hz_trace_operation *op)
{
    if (op->is_cell) return rehearse_fill(r, thread, op->operand, op->size);
    *find_slot(r, thread, op->operand, false) = op->size + 1;
    return true;
}

static bool rehearse_end_block(rehearsal *r, uint32_t thread, const hz_trace_operation *op)
{
    uint64_t size;
    if (op->is_cell) {
        if (!rehearse_take_out(r, thread, op->operand, &size)) return false;
    } else {
        uint64_t *slot = find_slot(r, thread, op->operand, true);
        size = *slot - 1;
        *slot = 0;
    }
    want(r, thread, size == op->size, "a block ends with another size than it was asked for with");
    return true;
}

static bool rehearse_change(rehearsal *r, uint32_t thread, const hz_trace_operation *op)
{
    want(r, thread, !op->is_cell && op->size > 0, "it is no legal realloc");
    uint64_t *slot = find_slot(r, thread, op->operand, true);
    r->actors[thread].old_sizes[r->made->parts[thread].realloc_count++] = *slot - 1;
    *slot = op->size + 1;
    return true;
}

static bool fetch(rehearsal *r, uint32_t thread, const hz_trace_operation *op)
{
    uint64_t size;
    uint64_t *slot = find_slot(r, thread, op->operand, false);
    if (!rehearse_take_out(r, thread, op->size, &size)) return false;
    *slot = size + 1;
    return true;
}

static bool hand(rehearsal *r, uint32_t thread, const hz_trace_operation *op)
{
    uint64_t *slot = find_slot(r, thread, op->operand, true);
    if (!rehearse_fill(r, thread, op->size, *slot - 1)) return false;
    *slot = 0;
    return true;
}

/* Does one operation; false: the thread waits, and does it again later. */
static bool rehearse_operation(rehearsal *r, uint32_t thread, const hz_trace_operation *op)
{
    want(r, thread, hz_trace_is_known(op->kind), "it has an operation of an unknown kind");
    want(r, thread, op->align_shift <= ALIGN_SHIFT_MAX, "it has an alignment that cannot be");
    switch (op->kind) {
    case HZ_TRACE_REALLOC:
        return rehearse_change(r, thread, op);
    case HZ_TRACE_FETCH:
        return fetch(r, thread, op);
    case HZ_TRACE_HAND:
        return hand(r, thread, op);
    case HZ_TRACE_SPAWN:
        return rehearse_spawn(r, thread, op->operand), true;
    case HZ_TRACE_JOIN:
        return join(r, thread, op->operand);
    case HZ_TRACE_TOUCH:
        return true;
    default:
        return hz_trace_gives(op->kind) ? rehearse_give(r, thread, op)
                                        : rehearse_end_block(r, thread, op);
    }
}

/* Lets a thread go on until it waits or ends. */
static void rehearse_thread(rehearsal *r, uint32_t thread)
{
    actor *a = &r->actors[thread];
    for (;;) {
        hz_trace_operation op;
        if (a->at == a->end && !rehearse_next_chunk(r, thread)) break;
        const bool is_wide = (*a->at >> HZ_TRACE_WIDE_AT & 1) != 0;
        want(r, thread, !is_wide || a->end - a->at > 1, "an operation is cut");
        const uint64_t *next = hz_trace_unpack(a->at, &op);
        if (!rehearse_operation(r, thread, &op)) return;
        r->calls += hz_trace_calls(op.kind);
        a->at = next;
    }
    rehearse_end(r, thread);
}

/* ---- from the beginning to the end ---------------------------------------------------------- */

/* The slots of a thread are as many as it has words at most. */
static void prepare_thread(rehearsal *r, uint32_t thread)
{
    const hz_trace_thread *about = &r->trace->threads[thread];
    hz_trace_part *part = &r->made->parts[thread];
    if (about->slot_count > about->word_count)
        hz_refuse("%s cannot be replayed: thread %" PRIu32 " has more slots than operations",
                  r->trace->path, thread);
    part->slots = own(r->made, about->slot_count * (uint64_t)sizeof *part->slots);
    part->joiner = HZ_TRACE_NO_THREAD;
    r->actors[thread].slots = (void *)part->slots;
    /* Untouched but for the reallocs that there are. */
    if (about->word_count > 0)
        r->actors[thread].old_sizes = hz_harness_alloc(about->word_count * sizeof(uint64_t));
    part->old_sizes = r->actors[thread].old_sizes;
    if (about->waits_for_spawn == 0) go_on(r, thread);
}

static void rehearse_prepare(rehearsal *r)
{
    const hz_trace_header *header = r->trace->header;
    const uint64_t groups =
        ((uint64_t)header->cell_count + HZ_TRACE_CELLS_A_GROUP - 1) / HZ_TRACE_CELLS_A_GROUP;
    if (header->thread_count == 0 || header->thread_count > HZ_TURNS_MAX_THREADS)
        hz_refuse("%s has %" PRIu32 " threads, and a replay takes from 1 to %d of them",
                  r->trace->path, header->thread_count, HZ_TURNS_MAX_THREADS);
    if (header->cell_count > header->file_bytes) /* each is used by two words of 8 bytes or more */
        hz_refuse("%s cannot be replayed: it has more cells than operations", r->trace->path);
    r->made->parts = own(r->made, header->thread_count * sizeof *r->made->parts);
    r->made->pairs = own(r->made, groups * sizeof *r->made->pairs);
    r->cells = own(r->made, header->cell_count * sizeof *r->cells);
    r->made->cells = (void *)r->cells;
    for (uint64_t i = 0; i < groups; i++)
        r->made->pairs[i] = (hz_trace_pair){HZ_TRACE_NO_THREAD, HZ_TRACE_NO_THREAD};
    r->actors = hz_harness_alloc(header->thread_count * sizeof *r->actors);
    r->ready = hz_harness_alloc(header->thread_count * sizeof *r->ready);
    for (uint32_t i = 0; i < header->thread_count; i++) prepare_thread(r, i);
}

/* Empties a slot or a cell at the end, and counts what was left in it. */
static void rehearse_empty(uint64_t *at, uint64_t *count, uint64_t *bytes)
{
    *count += *at != 0;
    *bytes += *at != 0 ? *at - 1 : 0;
    *at = 0;
}

/* What stays at the end is counted; slots and cells become empty. */
static void count_left(rehearsal *r)
{
    const hz_trace_header *header = r->trace->header;
    for (uint32_t i = 0; i < header->thread_count; i++) {
        hz_trace_part *part = &r->made->parts[i];
        for (uint32_t j = 0; j < r->trace->threads[i].slot_count; j++)
            rehearse_empty(&r->actors[i].slots[j], &part->left_count, &part->left_bytes);
        r->made->own_bytes += whole_pages(part->realloc_count * sizeof(uint64_t));
    }
    for (uint32_t i = 0; i < header->cell_count; i++)
        rehearse_empty(&r->cells[i], &r->made->left_in_cells, &r->made->left_bytes);
}

static void check_end(const rehearsal *r)
{
    for (uint32_t i = 0; i < r->trace->header->thread_count; i++) {
        if (r->actors[i].state == NOT_BORN)
            hz_refuse("%s cannot be replayed: nothing starts thread %" PRIu32, r->trace->path, i);
        if (r->actors[i].state != ENDED)
            hz_refuse("%s cannot be replayed: thread %" PRIu32 " waits for ever", r->trace->path,
                      i);
    }
    if (r->calls != r->trace->header->call_count || r->calls == 0)
        hz_refuse("%s cannot be replayed: it has %" PRIu64 " calls and says %" PRIu64,
                  r->trace->path, r->calls, r->trace->header->call_count);
}

hz_rehearsed hz_rehearse(const char *path)
{
    hz_rehearsed made = {.own_bytes = 0};
    const hz_file_bytes file = hz_read_file(path);
    hz_trace_read(&made.trace, path, &file);
    rehearsal r = {.made = &made, .trace = &made.trace};
    made.own_bytes = whole_pages(made.trace.header->file_bytes);
    rehearse_prepare(&r);
    while (r.ready_count > 0) rehearse_thread(&r, r.ready[--r.ready_count]);
    check_end(&r);
    count_left(&r);
    const uint32_t threads = made.trace.header->thread_count;
    (void)munmap(r.actors, threads * sizeof *r.actors);
    (void)munmap(r.ready, threads * sizeof *r.ready);
    return made;
}
