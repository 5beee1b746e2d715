/*
 * From steps to a trace: see emit.h and README.md.
 *
 * A block that its own thread ends stays in a slot of that thread; the slot that was emptied last
 * is used first. A block that another thread ends goes through a cell of that pair of threads; the
 * cell that has been empty the longest is used first, and a new one is made when none is empty. All
 * this happens in the order of time, so a replay that follows each thread's order can follow it.
 */
#include "emit.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "lives.h"
#include "trace_write.h"

enum {
    CELLS_A_GROUP = 8,  /* see hz_trace_header */
    SMALL_BYTES = 4096, /* of a block that may be on the way before its time */
    SMALL_CELLS = 64,   /* so many of them a pair has at least */
    FIRST_ROOM = 16,
    FIRST_PAIRS = 1 << 10,
};

/* A list of numbers that are free; taken from its end, or from its start. */
typedef struct numbers {
    uint32_t *at;
    uint32_t start; /* of those that are free */
    uint32_t count; /* how many are */
    uint32_t room;  /* a power of two; they wrap around */
} numbers;

/*
 * The cells from one thread to another, for blocks that are small or for the others. Of small ones
 * there are some more than the program needed, so that a replay's threads need not keep step.
 */
typedef struct pair {
    numbers empty; /* cells that are, the one that has been so the longest first */
    uint32_t made; /* cells so far */
    uint32_t next; /* cell of its last group that was never used */
    uint32_t left; /* how many of those there are */
} pair;

typedef struct emitter {
    hz_step *steps;         /* all of them */
    hz_trace_writer writer; /* where the trace goes */
    const hz_emission *about;
    uint64_t start;       /* time of the first step */
    numbers *slots;       /* of each thread, those that are empty */
    hz_lives numbers;     /* of the pairs, by both threads */
    pair *pairs;          /* by their numbers */
    size_t pair_count;    /* how many there are */
    size_t pair_room;     /* of `pairs` */
    uint64_t live_bytes;  /* now */
    uint64_t live_blocks; /* now */
} emitter;

/* Where a block is: a slot or a cell; kept in `to` of the step that gave it. */
#define CELL_BIT (UINT64_C(1) << 32)

/* ---- lists and pairs ------------------------------------------------------------------------ */

static void add_number(numbers *list, uint32_t number)
{
    if (list->count == list->room) {
        const uint32_t room = list->room == 0 ? FIRST_ROOM : 2 * list->room;
        uint32_t *at = malloc(room * sizeof *at);
        if (at == NULL) hz_fail("no memory for the slots of a trace");
        for (uint32_t i = 0; i < list->count; i++)
            at[i] = list->at[(list->start + i) & (list->room - 1)];
        free(list->at);
        *list = (numbers){at, 0, list->count, room};
    }
    list->at[(list->start + list->count++) & (list->room - 1)] = number;
}

static uint32_t newest_number(numbers *list)
{
    return list->at[(list->start + --list->count) & (list->room - 1)];
}

static uint32_t oldest_number(numbers *list)
{
    list->count--;
    return list->at[list->start++ & (list->room - 1)];
}

static uint64_t add_pair(emitter *e)
{
    if (e->pair_count == e->pair_room) {
        e->pair_room = e->pair_room == 0 ? FIRST_PAIRS : 2 * e->pair_room;
        e->pairs = realloc(e->pairs, e->pair_room * sizeof *e->pairs);
        if (e->pairs == NULL) hz_fail("no memory for %zu pairs of threads", e->pair_room);
    }
    e->pairs[e->pair_count] = (pair){.made = 0};
    return e->pair_count++;
}

static bool is_small(const hz_step *step)
{
    return step->size <= SMALL_BYTES;
}

/* The cells for the block that a step gave, on its way to another thread. */
static pair *pair_of(emitter *e, const hz_step *step, uint32_t taker)
{
    const uint64_t both = (uint64_t)step->thread << 32 | (uint64_t)taker << 1 | is_small(step);
    uint64_t number = hz_lives_find(&e->numbers, both + 1);
    if (number == HZ_NO_STEP) {
        number = add_pair(e);
        hz_lives_put(&e->numbers, both + 1, number);
    }
    return &e->pairs[number];
}

static uint32_t take_cell(emitter *e, const hz_step *step, uint32_t taker)
{
    pair *between = pair_of(e, step, taker);
    const bool is_enough = !is_small(step) || between->made >= SMALL_CELLS;
    e->writer.header.handed_count++;
    if (is_enough && between->empty.count > 0) return oldest_number(&between->empty);
    if (between->left == 0) {
        between->next = e->writer.header.cell_count;
        between->left = CELLS_A_GROUP;
        e->writer.header.cell_count += CELLS_A_GROUP;
    }
    between->left--;
    between->made++;
    return between->next++;
}

static uint32_t take_slot(emitter *e, uint32_t thread)
{
    if (e->slots[thread].count > 0) return newest_number(&e->slots[thread]);
    return e->writer.streams[thread].about.slot_count++;
}

/* ---- operations ----------------------------------------------------------------------------- */

/* Without times, the place in the order stands for it. */
static uint64_t step_ns(const emitter *e, const hz_step *step)
{
    if (e->about->ns_per_unit <= 0) return (uint64_t)(step - e->steps);
    return step->time > e->start
               ? (uint64_t)((double)(step->time - e->start) * e->about->ns_per_unit)
               : 0;
}

static void put_operation(emitter *e, const hz_step *step, hz_trace_kind kind, uint64_t where,
                          uint64_t size)
{
    hz_trace_operation operation = {.kind = kind,
                                    .is_cell = (where & CELL_BIT) != 0,
                                    .align_shift = hz_trace_calls(kind) ? step->align_shift : 0,
                                    .operand = (uint32_t)where,
                                    .size = size};
    hz_trace_append(&e->writer, step->thread, &operation, step_ns(e, step));
}

/* The thread that ends the block which a step gave; without an end it is the step's own. */
static uint32_t taker_of(const emitter *e, const hz_step *step)
{
    return step->to == HZ_NO_STEP ? step->thread : e->steps[step->to].thread;
}

static void count_live(emitter *e, uint64_t more, uint64_t less, int64_t blocks)
{
    hz_trace_header *header = &e->writer.header;
    e->live_bytes += more - less;
    e->live_blocks += (uint64_t)blocks;
    if (e->live_bytes > header->peak_bytes) header->peak_bytes = e->live_bytes;
    if (e->live_blocks > header->peak_blocks) header->peak_blocks = e->live_blocks;
}

static void emit_give(emitter *e, hz_step *step)
{
    const uint32_t taker = taker_of(e, step);
    const uint64_t where =
        taker == step->thread ? take_slot(e, step->thread) : take_cell(e, step, taker) | CELL_BIT;
    put_operation(e, step, (hz_trace_kind)step->kind, where, step->size);
    step->to = where;
    count_live(e, step->size, 0, 1);
}

static void emit_end(emitter *e, const hz_step *step)
{
    const hz_step *from = &e->steps[step->from];
    put_operation(e, step, (hz_trace_kind)step->kind, from->to, step->size);
    if ((from->to & CELL_BIT) != 0)
        add_number(&pair_of(e, from, step->thread)->empty, (uint32_t)from->to);
    else
        add_number(&e->slots[step->thread], (uint32_t)from->to);
    count_live(e, 0, from->size, -1);
}

static void emit_realloc(emitter *e, hz_step *step)
{
    const hz_step *from = &e->steps[step->from];
    const uint32_t taker = taker_of(e, step);
    uint64_t where = from->to;
    if ((where & CELL_BIT) != 0) {
        add_number(&pair_of(e, from, step->thread)->empty, (uint32_t)where);
        where = take_slot(e, step->thread);
        put_operation(e, step, HZ_TRACE_FETCH, where, (uint32_t)from->to);
    }
    put_operation(e, step, HZ_TRACE_REALLOC, where, step->size);
    if (taker != step->thread) {
        const uint32_t cell = take_cell(e, step, taker);
        put_operation(e, step, HZ_TRACE_HAND, where, cell);
        add_number(&e->slots[step->thread], (uint32_t)where);
        where = cell | CELL_BIT;
    }
    step->to = where;
    count_live(e, step->size, from->size, 0);
}

static void emit_step(emitter *e, hz_step *step)
{
    if (step->kind == HZ_TRACE_SPAWN || step->kind == HZ_TRACE_JOIN) {
        put_operation(e, step, (hz_trace_kind)step->kind, step->size, 0);
        if (step->kind == HZ_TRACE_SPAWN) e->writer.streams[step->size].about.waits_for_spawn = 1;
    } else if (step->kind == HZ_TRACE_REALLOC) {
        emit_realloc(e, step);
    } else if (hz_trace_ends((hz_trace_kind)step->kind)) {
        emit_end(e, step);
    } else {
        emit_give(e, step);
    }
}

/* ---- all together --------------------------------------------------------------------------- */

static void finish_trace(emitter *e, const hz_resolver *resolver)
{
    hz_trace_header *header = &e->writer.header;
    header->flags |= e->about->flags;
    if (e->about->ns_per_unit > 0) header->flags |= HZ_TRACE_HAS_TIME;
    for (uint32_t i = 0; i < resolver->thread_count; i++)
        if (e->writer.streams[i].about.end_ns > header->duration_ns)
            header->duration_ns = e->writer.streams[i].about.end_ns;
    for (uint32_t i = 0; i < resolver->actor_room; i++) {
        const hz_actor *actor = &resolver->actors[i];
        if (actor->has_begun)
            memcpy(e->writer.streams[actor->number].about.name, actor->name, sizeof actor->name);
    }
    hz_trace_close(&e->writer, e->about->notes);
}

hz_trace_header hz_emit(hz_resolver *resolver, const hz_emission *emission)
{
    emitter e = {.steps = resolver->steps.at, .about = emission};
    hz_trace_create(&e.writer, emission->path, resolver->thread_count);
    e.start = resolver->steps.count > 0 ? e.steps[0].time : 0;
    e.slots = calloc((size_t)resolver->thread_count + 1, sizeof *e.slots);
    hz_lives_make(&e.numbers);
    if (e.slots == NULL) hz_fail("no memory for %u threads", resolver->thread_count);
    for (uint64_t i = 0; i < resolver->steps.count; i++)
        if (e.steps[i].kind != 0) emit_step(&e, &e.steps[i]);
    finish_trace(&e, resolver);
    for (uint32_t i = 0; i < resolver->thread_count; i++) free(e.slots[i].at);
    for (size_t i = 0; i < e.pair_count; i++) free(e.pairs[i].empty.at);
    free(e.slots);
    free(e.pairs);
    hz_lives_drop(&e.numbers);
    return e.writer.header;
}
