/*
 * One order of all operations: see trace_order.h. A replay, of which only the waiting is done.
 */
#include "trace_order.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"

/* A thread of the trace. */
typedef struct reader {
    hz_trace_cursor cursor;
    hz_trace_operation operation; /* its next one */
    bool has_next;                /* there is one */
    bool is_waiting;              /* for its spawn, or for what its next operation needs */
    uint32_t place;               /* its own in the heap, while it has a next one */
    uint64_t *slots;              /* numbers of the blocks in its slots */
    uint32_t slot_count;          /* how many */
    uint32_t joiner;              /* the thread that waits for its end, plus one; 0: none */
} reader;

/* A cell of the trace. */
typedef struct cell {
    uint64_t block;     /* number of the block in it; 0: it is empty */
    uint32_t for_block; /* thread that waits until it is full, plus one; 0: none */
    uint32_t for_empty; /* thread that waits until it is empty, plus one; 0: none */
} cell;

struct hz_order {
    const hz_trace *trace;
    reader *readers;
    uint32_t *heap; /* threads with a next operation: those that can go on, the earliest first */
    uint32_t heap_count;
    cell *cells;
    uint64_t cell_count;
    uint64_t block_count; /* blocks so far */
    uint64_t cell_max;    /* of a cell: a trace has fewer than words, rounded up to eights */
};

/* ---- the heap ------------------------------------------------------------------------------- */

static bool reader_is_before(const hz_order *order, uint32_t a, uint32_t b)
{
    const reader *of_a = &order->readers[a], *of_b = &order->readers[b];
    const uint64_t a_ns = of_a->cursor.time_ns, b_ns = of_b->cursor.time_ns;
    if (of_a->is_waiting != of_b->is_waiting) return of_b->is_waiting;
    return a_ns != b_ns ? a_ns < b_ns : a < b;
}

static void heap_swap(hz_order *order, uint32_t a, uint32_t b)
{
    const uint32_t kept = order->heap[a];
    order->heap[a] = order->heap[b];
    order->heap[b] = kept;
    order->readers[order->heap[a]].place = a;
    order->readers[order->heap[b]].place = b;
}

static void heap_rise(hz_order *order, uint32_t at)
{
    for (; at > 0 && reader_is_before(order, order->heap[at], order->heap[(at - 1) / 2]);
         at = (at - 1) / 2)
        heap_swap(order, at, (at - 1) / 2);
}

static void heap_sink_first(hz_order *order)
{
    for (uint32_t at = 0;;) {
        uint32_t first = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < order->heap_count; child++)
            if (reader_is_before(order, order->heap[child], order->heap[first])) first = child;
        if (first == at) return;
        heap_swap(order, first, at);
        at = first;
    }
}

static void ready_push(hz_order *order, uint32_t thread)
{
    const uint32_t at = order->heap_count++;
    order->heap[at] = thread;
    order->readers[thread].place = at;
    heap_rise(order, at);
}

static void ready_pop(hz_order *order)
{
    heap_swap(order, 0, --order->heap_count);
    heap_sink_first(order);
}

static void let_go_on(hz_order *order, uint32_t thread)
{
    if (!order->readers[thread].is_waiting) return;
    order->readers[thread].is_waiting = false;
    heap_rise(order, order->readers[thread].place);
}

static void wake_waiting(hz_order *order, uint32_t *waiting)
{
    if (*waiting != 0) let_go_on(order, *waiting - 1);
    *waiting = 0;
}

/* ---- slots and cells ------------------------------------------------------------------------ */

static void *grown(void *old, uint64_t *count, uint64_t wanted, uint64_t most, size_t size)
{
    if (wanted < *count) return old;
    if (wanted > most)
        hz_refuse("the trace names slot or cell %llu, which it has not",
                  (unsigned long long)wanted);
    const uint64_t room = wanted + wanted / 2 + 64;
    char *larger = reallocarray(old, room, size);
    if (larger == NULL) hz_fail("no memory for the blocks of a trace");
    memset(larger + *count * size, 0, (room - *count) * size);
    *count = room;
    return larger;
}

/* A thread has fewer slots than words. */
static uint64_t *reader_slot(const hz_order *order, reader *of, uint32_t number)
{
    const uint64_t most = order->trace->threads[of - order->readers].word_count;
    uint64_t count = of->slot_count;
    of->slots = grown(of->slots, &count, number, most, sizeof *of->slots);
    of->slot_count = (uint32_t)count;
    return &of->slots[number];
}

static cell *cell_of(hz_order *order, uint64_t number)
{
    order->cells =
        grown(order->cells, &order->cell_count, number, order->cell_max, sizeof *order->cells);
    return &order->cells[number];
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Where a thread has to note that it waits; NULL when it can go on. */
static uint32_t *obstacle(hz_order *order, uint32_t thread)
{
    const hz_trace_operation *operation = &order->readers[thread].operation;
    const bool gives = hz_trace_gives(operation->kind);
    if (operation->kind == HZ_TRACE_JOIN &&
        operation->operand < order->trace->header->thread_count) {
        reader *other = &order->readers[operation->operand];
        return other->has_next ? &other->joiner : NULL;
    }
    const bool fills = operation->kind == HZ_TRACE_HAND || (operation->is_cell && gives);
    const bool empties = operation->kind == HZ_TRACE_FETCH || (operation->is_cell && !gives);
    if (!fills && !empties) return NULL;
    cell *of = cell_of(order, operation->is_cell ? operation->operand : operation->size);
    if (fills) return of->block != 0 ? &of->for_empty : NULL;
    return of->block == 0 ? &of->for_block : NULL;
}

/* Notes that the first thread waits, where it cannot go on. */
static bool must_wait(hz_order *order, uint32_t thread)
{
    uint32_t *waiting = obstacle(order, thread);
    if (waiting == NULL) return false;
    *waiting = thread + 1;
    order->readers[thread].is_waiting = true;
    heap_sink_first(order);
    return true;
}

/* ---- operations ----------------------------------------------------------------------------- */

static void cell_fill(hz_order *order, uint64_t number, uint64_t block)
{
    cell *of = cell_of(order, number);
    of->block = block;
    wake_waiting(order, &of->for_block);
}

static uint64_t cell_empty(hz_order *order, uint64_t number)
{
    cell *of = cell_of(order, number);
    const uint64_t block = of->block;
    of->block = 0;
    wake_waiting(order, &of->for_empty);
    return block;
}

/* Does what the operation does to slots and cells; returns the number of its block. */
static uint64_t apply_operation(hz_order *order, uint32_t thread)
{
    reader *of = &order->readers[thread];
    const hz_trace_operation *operation = &of->operation;
    if (hz_trace_gives(operation->kind)) {
        const uint64_t block = ++order->block_count;
        if (operation->is_cell)
            cell_fill(order, operation->operand, block);
        else
            *reader_slot(order, of, operation->operand) = block;
        return block;
    }
    if (operation->kind == HZ_TRACE_REALLOC) return *reader_slot(order, of, operation->operand);
    if (hz_trace_ends(operation->kind))
        return operation->is_cell ? cell_empty(order, operation->operand)
                                  : *reader_slot(order, of, operation->operand);
    if (operation->kind == HZ_TRACE_FETCH)
        *reader_slot(order, of, operation->operand) = cell_empty(order, operation->size);
    if (operation->kind == HZ_TRACE_HAND)
        cell_fill(order, operation->size, *reader_slot(order, of, operation->operand));
    if (operation->kind == HZ_TRACE_SPAWN &&
        operation->operand < order->trace->header->thread_count)
        let_go_on(order, operation->operand);
    return 0;
}

static void reader_advance(hz_order *order, uint32_t thread)
{
    reader *of = &order->readers[thread];
    of->has_next = hz_trace_next(&of->cursor, &of->operation);
}

/* ---- all together --------------------------------------------------------------------------- */

hz_order *hz_order_make(const hz_trace *trace)
{
    const size_t threads = (size_t)trace->header->thread_count + 1;
    hz_order *order = calloc(1, sizeof *order);
    if (order == NULL) hz_fail("no memory for a trace");
    order->trace = trace;
    order->readers = calloc(threads, sizeof *order->readers);
    order->heap = calloc(threads, sizeof *order->heap);
    if (order->readers == NULL || order->heap == NULL) hz_fail("no memory for a trace");
    for (uint32_t i = 0; i < trace->header->thread_count; i++) {
        reader *of = &order->readers[i];
        hz_trace_start(&of->cursor, trace, i);
        order->cell_max += 8 * trace->threads[i].word_count + 8;
        reader_advance(order, i);
        of->is_waiting = of->has_next && trace->threads[i].waits_for_spawn != 0;
        if (of->has_next) ready_push(order, i);
    }
    return order;
}

bool hz_order_next(hz_order *order, hz_ordered *next)
{
    while (order->heap_count > 0) {
        const uint32_t thread = order->heap[0];
        reader *of = &order->readers[thread];
        if (of->is_waiting) return false;
        if (must_wait(order, thread)) continue;
        *next = (hz_ordered){.thread = thread, .operation = of->operation};
        next->time_ns = of->cursor.time_ns;
        reader_advance(order, thread);
        if (of->has_next)
            heap_sink_first(order);
        else
            ready_pop(order);
        /* What the operation does may wake others. */
        const hz_trace_operation following = of->operation;
        of->operation = next->operation;
        next->block = apply_operation(order, thread);
        of->operation = following;
        if (!of->has_next) wake_waiting(order, &of->joiner);
        if (next->operation.kind != HZ_TRACE_FETCH && next->operation.kind != HZ_TRACE_HAND)
            return true;
    }
    return false;
}

bool hz_order_is_stuck(const hz_order *order)
{
    for (uint32_t i = 0; i < order->trace->header->thread_count; i++)
        if (order->readers[i].has_next) return true;
    return false;
}

void hz_order_drop(hz_order *order)
{
    for (uint32_t i = 0; i < order->trace->header->thread_count; i++) free(order->readers[i].slots);
    free(order->readers);
    free(order->heap);
    free(order->cells);
    free(order);
}
