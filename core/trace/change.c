/*
 * Changes to a trace: see tools.h.
 */
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "tools.h"
#include "walk.h"

static void resolve_next(hz_resolver *resolver, const hz_ordered *next)
{
    const hz_trace_operation *operation = &next->operation;
    const bool is_of_thread = hz_trace_is_of_thread(operation->kind);
    const hz_call call = {.thread = next->thread,
                          .kind = (uint8_t)operation->kind,
                          .align_shift = operation->align_shift,
                          .time = next->time_ns,
                          .address = next->block * HZ_ADDRESS_UNIT,
                          .size = is_of_thread ? operation->operand : operation->size};
    hz_resolve_call(resolver, &call);
}

void hz_resolve_trace(const hz_trace *trace, hz_resolver *resolver)
{
    hz_ordered next;
    hz_walk *walk = hz_walk_make(trace);
    while (hz_walk_next(walk, &next)) resolve_next(resolver, &next);
    for (uint32_t i = 0; i < trace->header->thread_count; i++)
        memcpy(hz_resolver_actor(resolver, i)->name, trace->threads[i].name, HZ_TRACE_NAME_BYTES);
    hz_resolver_finish(resolver);
}

/* ---- cutting -------------------------------------------------------------------------------- */

/* A step before the part: kept, at its start, where it gives a block that lives then. */
static void cut_early(hz_step *step, const hz_step *steps, uint64_t from)
{
    const bool gives = step->kind <= HZ_TRACE_REALLOC;
    const bool is_needed = step->kind == HZ_TRACE_SPAWN ||
                           (gives && (step->to == HZ_NO_STEP || steps[step->to].time >= from));
    if (!is_needed) {
        step->kind = 0;
        return;
    }
    if (step->kind == HZ_TRACE_REALLOC) step->kind = HZ_TRACE_MALLOC;
    step->from = HZ_NO_STEP;
    step->time = from;
}

/* Numbers the threads anew that have a step; spawns and joins of the others go. */
static void drop_idle_threads(hz_resolver *resolver)
{
    hz_step *steps = resolver->steps.at;
    uint32_t *numbers = calloc((size_t)resolver->thread_count + 1, sizeof *numbers);
    uint32_t count = 0;
    if (numbers == NULL) hz_fail("no memory for %u threads", resolver->thread_count);
    for (uint64_t i = 0; i < resolver->steps.count; i++)
        if (hz_trace_calls((hz_trace_kind)steps[i].kind) && steps[i].kind != 0 &&
            numbers[steps[i].thread] == 0)
            numbers[steps[i].thread] = ++count;
    for (uint64_t i = 0; i < resolver->steps.count; i++) {
        const bool calls = hz_trace_calls((hz_trace_kind)steps[i].kind);
        if (numbers[steps[i].thread] == 0 || (!calls && numbers[steps[i].size] == 0))
            steps[i].kind = 0;
        else if (!calls)
            steps[i].size = numbers[steps[i].size] - 1;
        steps[i].thread = numbers[steps[i].thread] - 1;
    }
    for (uint32_t i = 0; i < resolver->actor_room; i++) {
        hz_actor *actor = &resolver->actors[i];
        actor->has_begun = actor->has_begun && numbers[actor->number] != 0;
        if (actor->has_begun) actor->number = numbers[actor->number] - 1;
    }
    resolver->thread_count = count;
    free(numbers);
}

void hz_cut(hz_resolver *resolver, uint64_t from, uint64_t to)
{
    hz_step *steps = resolver->steps.at;
    for (uint64_t i = 0; i < resolver->steps.count; i++) {
        if (steps[i].kind == 0) continue;
        if (steps[i].time >= to) {
            if (steps[i].from != HZ_NO_STEP) steps[steps[i].from].to = HZ_NO_STEP;
            steps[i].kind = 0;
        } else if (steps[i].time < from) {
            cut_early(&steps[i], steps, from);
        }
    }
    drop_idle_threads(resolver);
}

/* ---- telling less --------------------------------------------------------------------------- */

void hz_round_sizes(hz_resolver *resolver, uint64_t unit)
{
    for (uint64_t i = 0; i < resolver->steps.count; i++) {
        hz_step *step = &resolver->steps.at[i];
        if (step->kind == 0 || !hz_trace_calls((hz_trace_kind)step->kind)) continue;
        const uint64_t rounded = (step->size + unit - 1) & ~(unit - 1);
        step->size = rounded <= HZ_TRACE_SIZE_MAX ? rounded : step->size;
    }
}

void hz_forget_names(hz_resolver *resolver)
{
    for (uint32_t i = 0; i < resolver->actor_room; i++)
        memset(resolver->actors[i].name, 0, HZ_TRACE_NAME_BYTES);
}
