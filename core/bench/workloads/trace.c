/*
 * trace: replays a recorded trace, one player for each recorded thread.
 *
 * Each player reads its own words from first to last. Players share the cells, through which blocks
 * go from one to another, and nothing else that changes while they work (core/trace/README.md).
 *
 * A round is the whole trace, once. The course of a player in it:
 *   UNBORN  waits until another player has come to the spawn that names it; some start at once
 *   ALIVE   plays its words
 *   DEAD    waits until all have played theirs; a thread that the program joined has ended
 *   FREED   has freed what the program never did, and waits until all have
 *   LAST    is the last to have, and all others wait for it: where turns are whole rounds, one ends
 *           here
 * A recorded thread that was spawned is a new thread in every round.
 */
#include <stdio.h>
#include <unistd.h>

#include "trace_play.h"

enum { FREES_A_STEP = 4096 };

/* ---- the run -------------------------------------------------------------------------------- */

static unsigned open_trace(hz_options *options)
{
    hz_rehearsed *made = hz_harness_alloc(sizeof *made);
    *made = hz_rehearse(options->file);
    options->opened = made;
    return made->trace.header->thread_count;
}

static void describe(const hz_options *options, hz_json *json)
{
    const hz_rehearsed *made = options->opened;
    const hz_trace_header *header = made->trace.header;
    hz_json_int(json, "threads", options->threads);
    hz_json_int(json, "calls", (int64_t)header->call_count);
    hz_json_bool(json, "timed", (header->flags & HZ_TRACE_HAS_TIME) != 0);
}

/* What takes more memory than there is would be ended by the kernel, and others before it. */
static void require_memory(const hz_options *options, const hz_trace_header *header)
{
    const double gib = 1 << 30;
    const double here = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if ((double)header->peak_bytes >= here)
        hz_refuse("%s has blocks of %.1f GiB at once, and this machine has %.1f GiB; replay it on "
                  "a larger one",
                  options->file, (double)header->peak_bytes / gib, here / gib);
}

static void prepare(hz_run *run)
{
    hz_trace_shared *all = hz_harness_alloc(sizeof *all);
    const hz_rehearsed *made = run->options->opened;
    if (run->values[HZ_TRACE_PACE] != 0 && run->options->turns_fd >= 0)
        hz_refuse("--pace and --turns exclude each other: turns measure how fast it can be");
    if (run->values[HZ_TRACE_ROUNDS] != 0 && run->options->turns_fd >= 0)
        hz_refuse("--rounds and --turns exclude each other: turns go on for as long as it takes");
    if (run->values[HZ_TRACE_PACE] != 0 && (made->trace.header->flags & HZ_TRACE_HAS_TIME) == 0)
        hz_refuse("--pace %lld: %s was recorded without times",
                  (long long)run->values[HZ_TRACE_PACE], run->options->file);
    require_memory(run->options, made->trace.header);
    all->made = *made;
    all->calls = hz_look_up();
    all->lives = hz_harness_alloc(run->threads * sizeof *all->lives);
    const uint64_t calls = made->trace.header->call_count;
    all->last_round = (uint32_t)run->values[HZ_TRACE_ROUNDS];
    if (all->last_round == 0) all->last_round = (uint32_t)((run->options->ops + calls - 1) / calls);
    run->shared = all;
    run->own_kb = (int64_t)(made->own_bytes / 1024);
    atomic_store(&run->page->own_kb, run->own_kb);
}

/* Fixed work is whole rounds: see `last_round`. */
static uint64_t quota(const hz_run *run, unsigned index)
{
    (void)run, (void)index;
    return UINT64_MAX;
}

/* Whether the thread ends before the round does. */
static bool is_joined(const hz_trace_state *s, unsigned index)
{
    return hz_trace_recorded(s, index)->waits_for_spawn != 0 &&
           s->all->made.parts[index].joiner != HZ_TRACE_NO_THREAD;
}

/* ---- rounds --------------------------------------------------------------------------------- */

/* All that were waited for have come: everything goes on. */
static void next_phase(hz_player *p, hz_trace_state *s)
{
    hz_run *run = p->run;
    atomic_store(&s->all->arrived, 0);
    atomic_store(&s->all->round_ns, 0);
    atomic_fetch_add(&s->all->phase, 1);
    for (unsigned i = 0; i < run->threads; i++) hz_wake(&run->players[i]);
}

/* Waits until all players have come here. Each round has two such places, and one is before all. */
static void arrive(hz_player *p, hz_trace_state *s, hz_trace_stage next)
{
    s->stage = next;
    hz_trace_wait(s, PHASE, 2 * s->round + (next == FREED));
    if (atomic_fetch_add(&s->all->arrived, 1) + 1 < p->run->threads) return;
    if (next == FREED && p->run->page->is_whole != 0) {
        s->stage = LAST;
        s->cause = NOTHING;
    } else {
        next_phase(p, s);
    }
}

/* The workload's `between`. */
static bool is_between(const hz_player *p)
{
    return ((const hz_trace_state *)p->state)->stage == LAST;
}

static void begin(hz_player *p)
{
    hz_trace_state *s = p->state;
    s->all = p->run->shared;
    s->cells = s->all->made.cells;
    s->slots = s->all->made.parts[p->index].slots;
    s->is_plain = p->instruments == NULL && p->run->values[HZ_TRACE_PACE] == 0;
    arrive(p, s, FREED); /* as if a round had ended */
}

static void be_born(hz_player *p, hz_trace_state *s)
{
    int64_t unset = 0;
    s->stage = ALIVE;
    s->at = s->end = NULL;
    s->chunk = 0;
    s->old_sizes = s->all->made.parts[p->index].old_sizes;
    if (!s->is_plain)
        (void)atomic_compare_exchange_strong(&s->all->round_ns, &unset, hz_clock_ns());
}

static void end_life(hz_player *p, hz_trace_state *s)
{
    const uint32_t joiner = s->all->made.parts[p->index].joiner;
    atomic_store(&s->all->lives[p->index].ended, s->round);
    if (joiner != HZ_TRACE_NO_THREAD) hz_wake(&p->run->players[joiner]);
    p->hand_over = is_joined(s, p->index);
    arrive(p, s, DEAD);
}

/* Frees what one thread left in its slots, some of it; true: all of it is freed. */
static bool free_slots(hz_player *p, hz_trace_state *s, unsigned index)
{
    const hz_trace_part *part = &s->all->made.parts[index];
    const uint32_t count = hz_trace_recorded(s, index)->slot_count;
    if (part->left_count == 0) return true;
    for (uint32_t i = 0; i < FREES_A_STEP && s->left_slot < count; i++, s->left_slot++) {
        free(part->slots[s->left_slot]);
        part->slots[s->left_slot] = NULL;
    }
    if (s->left_slot < count) return false;
    p->live_bytes -= (int64_t)part->left_bytes;
    s->left_slot = 0;
    return true;
}

static void free_cells(hz_trace_state *s)
{
    for (uint32_t i = 0; i < s->all->made.trace.header->cell_count; i++)
        free((void *)(atomic_exchange(&s->cells[i], 0) & ~HZ_TRACE_SLEEPER));
}

/* Whether this player frees what a thread has left: its own, or player 0 what the dead have. */
static bool is_heir(const hz_player *p, const hz_trace_state *s, unsigned index)
{
    return is_joined(s, index) ? p->index == 0 : p->index == index;
}

/* Frees what the program never did, some of it at a time; true: all of it is freed. */
static bool free_left(hz_player *p, hz_trace_state *s)
{
    for (; s->left_thread < p->run->threads; s->left_thread++)
        if (is_heir(p, s, s->left_thread) && !free_slots(p, s, s->left_thread)) return false;
    s->left_thread = 0;
    if (p->index != 0 || s->all->made.left_in_cells == 0) return true;
    free_cells(s);
    p->live_bytes -= (int64_t)s->all->made.left_bytes;
    return true;
}

/* The round's last part. The player has done all it was to do when it was the last round. */
static void bury(hz_player *p, hz_trace_state *s)
{
    if (s->round == s->all->last_round) {
        p->quota = 0;
    } else if (free_left(p, s)) {
        p->hand_over =
            hz_trace_recorded(s, p->index)->waits_for_spawn != 0 && !is_joined(s, p->index);
        arrive(p, s, FREED);
    }
}

static void begin_round(const hz_player *p, hz_trace_state *s)
{
    s->round++;
    s->stage = UNBORN;
    if (hz_trace_recorded(s, p->index)->waits_for_spawn != 0) hz_trace_wait(s, SPAWN, p->index);
}

static size_t live(hz_player *p, hz_trace_state *s, size_t most)
{
    bool ended = false;
    const size_t done = hz_trace_play(p, s, most, &ended);
    if (ended) end_life(p, s);
    return done;
}

static size_t step(hz_player *p, size_t most)
{
    hz_trace_state *s = p->state;
    if (s->cause != NOTHING) {
        if (!hz_trace_is_over(s)) return 0;
        s->cause = NOTHING;
    }
    p->waits = 0; /* what follows is no wait of long, whatever it returns */
    switch (s->stage) {
    case UNBORN:
        be_born(p, s);
        return live(p, s, most);
    case ALIVE:
        return live(p, s, most);
    case DEAD:
        bury(p, s);
        return 0;
    case LAST:
        s->stage = FREED;
        next_phase(p, s);
        return 0;
    default:
        begin_round(p, s);
        return 0;
    }
}

/* The run has ended, maybe within a round. */
static void end(hz_player *p)
{
    hz_trace_state *s = p->state;
    for (uint32_t i = 0; i < hz_trace_recorded(s, p->index)->slot_count; i++) free(s->slots[i]);
    if (p->index == 0) free_cells(s);
}

/* ---- report --------------------------------------------------------------------------------- */

static void report(const hz_run *run, hz_json *json)
{
    hz_trace_shared *all = run->shared;
    const hz_trace_header *header = all->made.trace.header;
    hz_json_object(json, "trace");
    hz_json_int(json, "calls", (int64_t)header->call_count);
    hz_json_int(json, "handed", (int64_t)header->handed_count);
    hz_json_int(json, "rounds", (int64_t)(atomic_load(&all->phase) / 2));
    hz_json_object_end(json);
}

const hz_workload hz_workload_trace = {
    .name = "trace",
    .doc = "replays a recorded trace with all its threads, round after round; a thread waits only "
           "for blocks and ends of others. An operation is one call of the allocator",
    .source = "a program of yours: hztune record",
    .params =
        {
            {"pace", 0, 0, 100000, NULL, "%",
             "of the speed of the recording: 100 as recorded, 200 twice as fast; 0: as fast as "
             "possible"},
            {"rounds", 0, 0, 1000000, NULL, "",
             "of a process: 1 is the program from its start to its end; 0: as many as there is "
             "time for"},
        },
    .state_bytes = sizeof(hz_trace_state),
    .prepare = prepare,
    .begin = begin,
    .step = step,
    .end = end,
    .quota = quota,
    .report = report,
    .open = open_trace,
    .describe = describe,
    .arm = hz_trace_arm,
    .between = is_between,
};
