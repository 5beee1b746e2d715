/*
 * From addresses to blocks: see resolve.h.
 */
#include "resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arguments.h"

/* ---- the list of steps ---------------------------------------------------------------------- */

enum { GROWTH = 1 << 15 }; /* steps that room is made for at once, at least */

/* Opens a file beside `beside` that has no name any more. */
static int open_nameless(const char *beside)
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s.%d.steps", beside, (int)getpid());
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) (void)unlink(path);
    return fd;
}

/* The file has blocks for all of it: a full disk is an error here, not a signal later. */
static void steps_grow(hz_steps *steps)
{
    const uint64_t room = steps->room + GROWTH + steps->room / 4;
    const off_t from = (off_t)(steps->room * sizeof(hz_step));
    const off_t to = (off_t)(room * sizeof(hz_step));
    const int failure = posix_fallocate(steps->fd, from, to - from);
    if (failure != 0) hz_fail("no room to put the operations in order: %s", strerror(failure));
    if (steps->at != NULL) (void)munmap(steps->at, (size_t)from);
    steps->at = mmap(NULL, (size_t)to, PROT_READ | PROT_WRITE, MAP_SHARED, steps->fd, 0);
    if (steps->at == MAP_FAILED) hz_fail("no memory for the operations: %s", strerror(errno));
    steps->room = room;
}

static uint64_t steps_add(hz_steps *steps, const hz_step *step)
{
    if (steps->count == steps->room) steps_grow(steps);
    steps->at[steps->count] = *step;
    return steps->count++;
}

/* ---- all together --------------------------------------------------------------------------- */

void hz_resolver_make(hz_resolver *resolver, const char *beside)
{
    *resolver = (hz_resolver){.steps.fd = open_nameless(beside)};
    if (resolver->steps.fd < 0) hz_fail("cannot write beside %s: %s", beside, strerror(errno));
    hz_lives_make(&resolver->lives);
}

void hz_resolver_drop(hz_resolver *resolver)
{
    const hz_steps *steps = &resolver->steps;
    if (steps->at != NULL) (void)munmap(steps->at, steps->room * sizeof(hz_step));
    (void)close(steps->fd);
    hz_lives_drop(&resolver->lives);
    free(resolver->actors);
}

hz_actor *hz_resolver_actor(hz_resolver *resolver, uint32_t thread)
{
    if (thread >= resolver->actor_room) {
        const uint32_t room = 2 * thread + 64;
        hz_actor *actors = realloc(resolver->actors, room * sizeof *actors);
        if (actors == NULL) hz_fail("no memory for %u threads", room);
        memset(actors + resolver->actor_room, 0, (room - resolver->actor_room) * sizeof *actors);
        resolver->actors = actors;
        resolver->actor_room = room;
    }
    return &resolver->actors[thread];
}

/* ---- links ---------------------------------------------------------------------------------- */

static uint64_t add_step(hz_resolver *resolver, uint32_t thread, const hz_call *call, uint8_t kind,
                         uint64_t from)
{
    return steps_add(&resolver->steps, &(hz_step){.time = call->time,
                                                  .size = call->size,
                                                  .from = from,
                                                  .to = HZ_NO_STEP,
                                                  .thread = thread,
                                                  .kind = kind,
                                                  .align_shift = call->align_shift});
}

/* The thread gets a number, and a spawn in the thread that was last active. */
static void actor_begin(hz_resolver *resolver, hz_actor *actor, const hz_call *call)
{
    actor->has_begun = true;
    actor->number = resolver->thread_count++;
    if (actor->number == 0) return;
    const hz_call spawn = {.time = call->time, .size = call->thread};
    (void)add_step(resolver, resolver->latest, &spawn, HZ_TRACE_SPAWN, HZ_NO_STEP);
}

/* Adds a step of a call; it may end the block that the step `from` gave. */
static uint64_t add(hz_resolver *resolver, const hz_call *call, uint8_t kind, uint64_t from)
{
    hz_actor *actor = hz_resolver_actor(resolver, call->thread);
    if (!actor->has_begun) actor_begin(resolver, actor, call);
    const uint64_t step = add_step(resolver, actor->number, call, kind, from);
    if (from != HZ_NO_STEP) resolver->steps.at[from].to = step;
    actor->last = step;
    resolver->latest = actor->number;
    return step;
}

/* Whatever was moving was a free: realloc to size 0, or the end of the recording in the middle. */
static void actor_settle(hz_resolver *resolver, uint32_t thread)
{
    hz_actor *actor = hz_resolver_actor(resolver, thread);
    if (!actor->is_moving) return;
    actor->is_moving = false;
    if (actor->moving_from == HZ_NO_STEP) return;
    const hz_call end = {.thread = thread,
                         .time = actor->moving_time,
                         .size = resolver->steps.at[actor->moving_from].size};
    (void)add(resolver, &end, HZ_TRACE_FREE, actor->moving_from);
}

/* The block that lives where another one was given has ended without a word. */
static void end_overlapped(hz_resolver *resolver, const hz_call *call)
{
    const uint64_t from = hz_lives_take(&resolver->lives, call->address);
    if (from == HZ_NO_STEP) return;
    hz_call end = *call;
    end.size = resolver->steps.at[from].size;
    end.align_shift = 0;
    (void)add(resolver, &end, HZ_TRACE_FREE, from);
    resolver->overlapping++;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void resolve_give(hz_resolver *resolver, const hz_call *call)
{
    actor_settle(resolver, call->thread);
    end_overlapped(resolver, call);
    hz_lives_put(&resolver->lives, call->address, add(resolver, call, call->kind, HZ_NO_STEP));
}

static void resolve_end(hz_resolver *resolver, const hz_call *call)
{
    actor_settle(resolver, call->thread);
    const uint64_t from = hz_lives_take(&resolver->lives, call->address);
    if (from == HZ_NO_STEP) {
        resolver->unknown++;
        return;
    }
    hz_call end = *call;
    end.size = resolver->steps.at[from].size;
    end.align_shift =
        call->kind == HZ_TRACE_FREE_ALIGNED_SIZED || call->kind >= HZ_TRACE_DELETE_ALIGNED
            ? resolver->steps.at[from].align_shift
            : 0;
    (void)add(resolver, &end, call->kind, from);
}

void hz_resolve_moving(hz_resolver *resolver, const hz_call *call)
{
    actor_settle(resolver, call->thread);
    hz_actor *actor = hz_resolver_actor(resolver, call->thread);
    actor->is_moving = true;
    actor->moving_from = hz_lives_take(&resolver->lives, call->address);
    actor->moving_time = call->time;
    actor->moving_address = call->address;
    if (call->address != 0 && actor->moving_from == HZ_NO_STEP) resolver->unknown++;
}

/* A realloc to size 0 that gives a block, as some allocators do, is a free and a malloc: others
 * would give none in a replay. */
void hz_resolve_moved(hz_resolver *resolver, const hz_call *call)
{
    if (call->size == 0) actor_settle(resolver, call->thread);
    hz_actor *actor = hz_resolver_actor(resolver, call->thread);
    const uint64_t from = actor->is_moving ? actor->moving_from : HZ_NO_STEP;
    actor->is_moving = false;
    end_overlapped(resolver, call);
    const uint8_t kind = from == HZ_NO_STEP ? HZ_TRACE_MALLOC : HZ_TRACE_REALLOC;
    hz_lives_put(&resolver->lives, call->address, add(resolver, call, kind, from));
}

void hz_resolve_stayed(hz_resolver *resolver, const hz_call *call)
{
    hz_actor *actor = hz_resolver_actor(resolver, call->thread);
    if (!actor->is_moving) return;
    actor->is_moving = false;
    if (actor->moving_from != HZ_NO_STEP)
        hz_lives_put(&resolver->lives, actor->moving_address, actor->moving_from);
}

/* ---- threads -------------------------------------------------------------------------------- */

uint64_t hz_resolve_thread(hz_resolver *resolver, const hz_call *call)
{
    return add(resolver, call, call->kind, HZ_NO_STEP);
}

void hz_resolve_call(hz_resolver *resolver, const hz_call *call)
{
    const hz_trace_kind kind = (hz_trace_kind)call->kind;
    if (hz_trace_is_of_thread(kind)) {
        (void)hz_resolve_thread(resolver, call);
    } else if (kind == HZ_TRACE_REALLOC) {
        hz_resolve_moving(resolver, call);
        hz_resolve_moved(resolver, call);
    } else if (hz_trace_ends(kind)) {
        resolve_end(resolver, call);
    } else {
        resolve_give(resolver, call);
    }
}

/* Whether a spawn or a join can be followed by a replay; then it names the thread's number. */
static bool settle_thread(hz_resolver *resolver, uint64_t index)
{
    hz_step *step = &resolver->steps.at[index];
    if (step->size >= resolver->actor_room) return false;
    const hz_actor *actor = &resolver->actors[step->size];
    if (!actor->has_begun || actor->number == step->thread) return false;
    step->size = actor->number;
    /* The first thread is there without a spawn; of every other one the first spawn counts. */
    return step->kind == HZ_TRACE_SPAWN ? actor->number > 0 : actor->last < index;
}

void hz_resolver_finish(hz_resolver *resolver)
{
    for (uint32_t i = 0; i < resolver->actor_room; i++) actor_settle(resolver, i);
    uint64_t *spawn = calloc((size_t)resolver->thread_count + 1, sizeof *spawn);
    if (spawn == NULL) hz_fail("no memory for %u threads", resolver->thread_count);
    for (uint64_t i = 0; i < resolver->steps.count; i++) {
        hz_step *step = &resolver->steps.at[i];
        if (step->kind != HZ_TRACE_SPAWN && step->kind != HZ_TRACE_JOIN) continue;
        if (!settle_thread(resolver, i)) {
            step->kind = 0;
        } else if (step->kind == HZ_TRACE_SPAWN) {
            const bool is_second = spawn[step->size] != 0; /* the first one counts */
            if (is_second) step->kind = 0;
            spawn[step->size] = i + 1;
        }
    }
    free(spawn);
}

void hz_resolver_tell(const hz_resolver *resolver, const char *program)
{
    if (resolver->unknown > 0)
        (void)fprintf(stderr,
                      "%s: %" PRIu64 " calls about blocks from before the recording are left out\n",
                      program, resolver->unknown);
    if (resolver->overlapping > 0)
        (void)fprintf(stderr, "%s: %" PRIu64 " frees were not seen\n", program,
                      resolver->overlapping);
}
