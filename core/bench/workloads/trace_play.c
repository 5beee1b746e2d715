/*
 * Playing the words of a trace: see trace_play.h.
 *
 * Plain mallocs and frees of a thread's own blocks are the fast path, and come first in the loop.
 */
#include "trace_play.h"

#include "blocks.h"

enum { NAP_NS = 1000000 };

#define SLEEPER HZ_TRACE_SLEEPER

/* ---- waiting -------------------------------------------------------------------------------- */

static bool halt(hz_trace_state *s, hz_trace_cause why, uint32_t what)
{
    hz_trace_wait(s, why, what);
    return false;
}

bool hz_trace_is_over(const hz_trace_state *s)
{
    switch (s->cause) {
    case CELL_FULL:
        return (atomic_load(&s->cells[s->waits_for]) & ~SLEEPER) != 0;
    case CELL_EMPTY:
        return (atomic_load(&s->cells[s->waits_for]) & ~SLEEPER) == 0;
    case THREAD_END:
        return atomic_load(&s->all->lives[s->waits_for].ended) >= s->round;
    case SPAWN:
        return atomic_load(&s->all->lives[s->waits_for].spawned) >= s->round;
    case PHASE:
        return atomic_load(&s->all->phase) >= s->waits_for;
    default:
        return true;
    }
}

/* Leaves the mark in a cell that is full, or empty, as long as it is; false: it is not. */
static bool mark(_Atomic uintptr_t *cell, bool is_full)
{
    uintptr_t seen = atomic_load(cell);
    while (((seen & ~SLEEPER) != 0) == is_full)
        if ((seen & SLEEPER) != 0 || atomic_compare_exchange_weak(cell, &seen, seen | SLEEPER))
            return true;
    return false;
}

bool hz_trace_arm(hz_player *p)
{
    const hz_trace_state *s = p->state;
    if (s->cause == CELL_FULL) return mark(&s->cells[s->waits_for], false);
    if (s->cause == CELL_EMPTY) return mark(&s->cells[s->waits_for], true);
    return !hz_trace_is_over(s);
}

/* ---- cells ---------------------------------------------------------------------------------- */

static hz_player *partner(hz_player *p, const hz_trace_state *s, uint32_t cell, bool is_taker)
{
    const hz_trace_pair *pair = &s->all->made.pairs[cell / HZ_TRACE_CELLS_A_GROUP];
    const uint32_t index = is_taker ? pair->taker : pair->giver;
    return index != HZ_TRACE_NO_THREAD ? &p->run->players[index] : p;
}

static bool is_filled(const hz_trace_state *s, uint32_t cell)
{
    return (atomic_load_explicit(&s->cells[cell], memory_order_acquire) & ~SLEEPER) != 0;
}

/* Puts a block into an empty cell. */
static void fill(hz_player *p, hz_trace_state *s, uint32_t cell, const void *block)
{
    if ((atomic_exchange(&s->cells[cell], (uintptr_t)block) & SLEEPER) != 0)
        hz_wake(partner(p, s, cell, true));
}

/* Takes the block out of a full cell. */
static void *replay_take_out(hz_player *p, hz_trace_state *s, uint32_t cell)
{
    const uintptr_t found = atomic_exchange(&s->cells[cell], 0);
    if ((found & SLEEPER) != 0) hz_wake(partner(p, s, cell, false));
    return (void *)(found & ~SLEEPER);
}

/* ---- operations ----------------------------------------------------------------------------- */

/* Any block but a plain one. */
static void *replay_take(hz_player *p, hz_trace_state *s, const hz_trace_operation *op)
{
    const int64_t start_ns = p->instruments != NULL ? hz_clock_ns() : 0;
    void *block = hz_trace_take(&s->all->calls, op);
    if (p->instruments != NULL) hz_timer_take(p->instruments, start_ns);
    if (HZ_UNLIKELY(block == NULL)) hz_fail_memory(op->size);
    p->live_bytes += (int64_t)op->size;
    hz_touch_block(block, op->size);
    return block;
}

static void replay_end_block(hz_player *p, hz_trace_state *s, const hz_trace_operation *op,
                             void *block)
{
    const int64_t start_ns = p->instruments != NULL ? hz_clock_ns() : 0;
    p->live_bytes -= (int64_t)op->size;
    hz_trace_end(&s->all->calls, op, block);
    if (p->instruments != NULL) hz_timer_give(p->instruments, start_ns);
}

static void change(hz_player *p, hz_trace_state *s, const hz_trace_operation *op)
{
    const uint64_t old_size = *s->old_sizes++;
    void **slot = &s->slots[op->operand];
    *slot = p->instruments != NULL ? hz_take_timed(p->instruments, *slot, op->size)
                                   : realloc(*slot, op->size);
    if (HZ_UNLIKELY(*slot == NULL)) hz_fail_memory(op->size);
    p->live_bytes += (int64_t)op->size - (int64_t)old_size;
    if (op->size > old_size) hz_touch_block((unsigned char *)*slot + old_size, op->size - old_size);
}

/* Steps between threads; false: this one has to wait. */
static bool pass_on(hz_player *p, hz_trace_state *s, const hz_trace_operation *op)
{
    const uint32_t cell = (uint32_t)op->size;
    switch (op->kind) {
    case HZ_TRACE_FETCH:
        if (!is_filled(s, cell)) return halt(s, CELL_FULL, cell);
        s->slots[op->operand] = replay_take_out(p, s, cell);
        return true;
    case HZ_TRACE_HAND:
        if (is_filled(s, cell)) return halt(s, CELL_EMPTY, cell);
        fill(p, s, cell, s->slots[op->operand]);
        s->slots[op->operand] = NULL;
        return true;
    case HZ_TRACE_JOIN:
        hz_trace_wait(s, THREAD_END, op->operand);
        return hz_trace_is_over(s);
    default:
        atomic_store(&s->all->lives[op->operand].spawned, s->round);
        hz_wake(&p->run->players[op->operand]);
        return true;
    }
}

/* Does an operation that is no plain malloc or free; false: it has to wait, and comes again. */
static __attribute__((noinline)) bool act(hz_player *p, hz_trace_state *s,
                                          const hz_trace_operation *op)
{
    if (op->kind == HZ_TRACE_REALLOC) {
        change(p, s, op);
    } else if (!hz_trace_calls(op->kind)) {
        return pass_on(p, s, op);
    } else if (hz_trace_gives(op->kind)) {
        if (op->is_cell && is_filled(s, op->operand)) return halt(s, CELL_EMPTY, op->operand);
        void *block = replay_take(p, s, op);
        if (op->is_cell)
            fill(p, s, op->operand, block);
        else
            s->slots[op->operand] = block;
    } else {
        if (op->is_cell && !is_filled(s, op->operand)) return halt(s, CELL_FULL, op->operand);
        void *block = op->is_cell ? replay_take_out(p, s, op->operand) : s->slots[op->operand];
        if (!op->is_cell) s->slots[op->operand] = NULL;
        replay_end_block(p, s, op, block);
    }
    return true;
}

/* ---- playing -------------------------------------------------------------------------------- */

static bool has_next_chunk(const hz_player *p, hz_trace_state *s)
{
    const hz_trace_thread *thread = hz_trace_recorded(s, p->index);
    if (s->chunk == thread->chunk_count) return false;
    const hz_trace *trace = &s->all->made.trace;
    const hz_trace_place *place = &trace->places[thread->first_place + s->chunk];
    s->at = hz_trace_words(trace, place, &s->end);
    s->time_ns = ((const hz_trace_chunk *)(const void *)(trace->bytes + place->offset))->start_ns;
    s->chunk++;
    return true;
}

/* Whether it is time for an operation; before, the player takes a nap. */
static bool is_due(hz_player *p, hz_trace_state *s, const hz_trace_operation *op)
{
    const int64_t pace = p->run->values[HZ_TRACE_PACE];
    if (pace == 0) return true;
    const double since_ns = (double)(s->time_ns + op->delta_ns) * 100 / (double)pace;
    const int64_t left_ns = atomic_load(&s->all->round_ns) + (int64_t)since_ns - hz_clock_ns();
    if (left_ns <= 0) return true;
    const int64_t nap_ns = left_ns < NAP_NS ? left_ns : NAP_NS;
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = nap_ns}, NULL);
    hz_trace_wait(s, TIME, 0);
    return false;
}

/*
 * The fast path: plain calls about the thread's own blocks, those of C++ too, up to the first other
 * word.
 * Returns how many it has done, at most `most`.
 */
static inline size_t play_plain(hz_player *p, hz_trace_state *s, size_t most)
{
    const uint64_t *at = s->at;
    const uint64_t *const end = s->end;
    void **const slots = s->slots;
    const hz_looked_up *const calls = &s->all->calls;
    int64_t live_bytes = p->live_bytes;
    size_t done = 0;
    for (; done < most && at != end; done++) {
        hz_trace_operation op;
        const uint64_t *next = hz_trace_unpack(at, &op);
        if (op.is_cell) break;
        if (op.kind == HZ_TRACE_MALLOC || op.kind == HZ_TRACE_NEW) {
            void *block = op.kind == HZ_TRACE_MALLOC ? malloc(op.size)
                                                     : calls->of[HZ_TRACE_NEW].take(op.size);
            if (HZ_UNLIKELY(block == NULL)) hz_fail_memory(op.size);
            hz_touch_block(block, op.size);
            slots[op.operand] = block;
            live_bytes += (int64_t)op.size;
        } else if (hz_trace_is_plain_end(op.kind)) {
            hz_trace_end_plain(calls, &op, slots[op.operand]);
            slots[op.operand] = NULL;
            live_bytes -= (int64_t)op.size;
        } else {
            break;
        }
        at = next;
    }
    s->at = at;
    p->live_bytes = live_bytes;
    return done;
}

/* The next word, whatever it is; false: the player has to wait. */
static bool play_one(hz_player *p, hz_trace_state *s, size_t *done)
{
    hz_trace_operation op;
    const uint64_t *next = hz_trace_unpack(s->at, &op);
    if (!is_due(p, s, &op) || !act(p, s, &op)) return false;
    s->time_ns += op.delta_ns;
    s->at = next;
    *done += hz_trace_calls(op.kind);
    return true;
}

size_t hz_trace_play(hz_player *p, hz_trace_state *s, size_t most, bool *ended)
{
    size_t done = 0;
    while (done < most) {
        if (HZ_UNLIKELY(s->at == s->end) && !has_next_chunk(p, s)) {
            *ended = true;
            break;
        }
        if (s->is_plain) done += play_plain(p, s, most - done);
        if (done < most && s->at != s->end && !play_one(p, s, &done)) break;
    }
    return done;
}
