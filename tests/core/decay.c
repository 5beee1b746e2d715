/*
 * What decays: depots give up blocks that no request takes, and what is free at last goes back to
 * the system. hz is given a clock that only the checks move.
 */
#include "check.h"

#include <hz/hz.h>

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

enum { SIZE = 512, BLOCKS = 4096, ASKED = 64, OTHER_SIZE = 64, LOOKS = 20 };

/* ---- between hz and the system -------------------------------------------------------------- */

static uint64_t clock_ms = 1000;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){(time_t)(clock_ms / 1000), (long)(clock_ms % 1000) * 1000000};
    return 0;
}

static void let_decay(void)
{
    while (hz_decay()) continue;
}

static void pass_delay(void)
{
    clock_ms += (uint64_t)hz_cfg.decay_ms;
    let_decay();
}

/* ---- depots --------------------------------------------------------------------------------- */

static uint32_t in_depot(size_t size)
{
    return hz_atomic_peek(&hz_shards[0].depots[hz_class_of(size)].count);
}

static void allocate_and_free(size_t count, size_t size)
{
    static void *blocks[BLOCKS];
    for (size_t i = 0; i < count; i++) blocks[i] = hz_malloc(size);
    for (size_t i = 0; i < count; i++) hz_free(blocks[i]);
}

/* Some thousand blocks, and a look, so that what follows is the first that is asked of them. */
static uint32_t fill_the_depot(size_t size)
{
    pass_delay();
    allocate_and_free(BLOCKS, size);
    pass_delay();
    const uint32_t count = in_depot(size);
    require(count > BLOCKS / 2, "the depot holds only %u blocks", count);
    return count;
}

static void take_from_the_depot(void **blocks, uint32_t count)
{
    for (uint32_t got = 0; got < count;)
        got += (uint32_t)hz_depot_take(0, hz_class_of(SIZE), blocks + got, count - got, NULL);
}

static void ask_the_depot(void)
{
    void *blocks[ASKED];
    take_from_the_depot(blocks, ASKED);
    hz_depot_give(0, hz_class_of(SIZE), blocks, ASKED);
}

static void what_nobody_asks_a_depot_for_goes_to_the_spans_by_and_by(void)
{
    const uint32_t all = fill_the_depot(SIZE);
    const size_t before = hz_span_cut_bytes();
    pass_delay();
    require(in_depot(SIZE) < all, "all %u blocks stay", all);
    require(in_depot(SIZE) >= all / 2, "at once only %u of %u blocks stay", in_depot(SIZE), all);
    for (int look = 0; look < LOOKS; look++) pass_delay();
    require(in_depot(SIZE) == 0, "%u blocks stay", in_depot(SIZE));
    require(hz_span_cut_bytes() < before, "no span was freed");
}

static void a_depot_keeps_what_is_asked_of_it(void)
{
    (void)fill_the_depot(SIZE);
    for (int look = 0; look < LOOKS; look++) {
        ask_the_depot();
        pass_delay();
    }
    require(in_depot(SIZE) == ASKED, "%u blocks stay, and %d are asked for", in_depot(SIZE), ASKED);
}

static void a_depot_that_ran_dry_keeps_everything(void)
{
    void *blocks[BLOCKS];
    const uint32_t all = fill_the_depot(SIZE);
    take_from_the_depot(blocks, all);
    require(in_depot(SIZE) == 0, "%u blocks are left", in_depot(SIZE));
    hz_depot_give(0, hz_class_of(SIZE), blocks, all);
    pass_delay();
    require(in_depot(SIZE) == all, "%u of %u blocks stay", in_depot(SIZE), all);
}

static void nothing_goes_before_the_delay_has_passed(void)
{
    const uint32_t all = fill_the_depot(SIZE);
    clock_ms += (uint64_t)hz_cfg.decay_ms - 1;
    let_decay();
    require(in_depot(SIZE) == all, "%u of %u blocks stay", in_depot(SIZE), all);
}

static void one_call_takes_from_one_depot(void)
{
    const uint32_t all = fill_the_depot(SIZE);
    const uint32_t others = fill_the_depot(OTHER_SIZE);
    pass_delay(); /* of both from now on nothing was asked */
    const uint32_t before = in_depot(SIZE) + in_depot(OTHER_SIZE);
    require(before < all + others, "nothing decays");
    clock_ms += (uint64_t)hz_cfg.decay_ms;
    require(hz_decay(), "nothing is due");
    const uint32_t one = in_depot(SIZE) + in_depot(OTHER_SIZE);
    require(one < before, "it took nothing");
    require(hz_decay(), "the other depot is not due");
    const uint32_t both = in_depot(SIZE) + in_depot(OTHER_SIZE);
    require(both < one, "the second call took nothing");
}

static void one_call_takes_a_part_of_what_many_blocks_owe(void)
{
    enum { A_PART = 1024 };
    const uint32_t before = fill_the_depot(SIZE);
    require(before / 2 > A_PART, "the depot holds only %u blocks", before);
    clock_ms += (uint64_t)hz_cfg.decay_ms;
    require(hz_decay(), "nothing is due");
    require(before - in_depot(SIZE) <= A_PART, "%u at once", before - in_depot(SIZE));
    let_decay();
    require(in_depot(SIZE) == before / 2, "%u of %u blocks stay", in_depot(SIZE), before);
}

static void a_child_goes_on_where_a_depot_gave_up_a_part(void)
{
    int status = -1;
    const uint32_t before = fill_the_depot(SIZE);
    clock_ms += (uint64_t)hz_cfg.decay_ms;
    require(hz_decay() && in_depot(SIZE) > before / 2, "nothing is left to give up");
    const pid_t child = fork();
    require(child != -1, "fork");
    let_decay();
    require(in_depot(SIZE) == before / 2, "%u of %u blocks stay", in_depot(SIZE), before);
    for (int look = 0; look < LOOKS; look++) pass_delay();
    require(in_depot(SIZE) == 0 && hz_usage_now().free_bytes == 0, "not all goes back");
    if (child == 0) _exit(0);
    require(waitpid(child, &status, 0) == child && status == 0, "the child ended with %d", status);
}

static void what_a_depot_gave_up_goes_back_to_the_system(void)
{
    (void)fill_the_depot(SIZE);
    pass_delay();
    require(hz_usage_now().free_bytes > 0, "no page is free");
    for (int look = 0; look < LOOKS; look++) pass_delay();
    require(hz_usage_now().free_bytes == 0, "%zu bytes are kept", hz_usage_now().free_bytes);
    const uint32_t kept = hz_shards[0].bins[hz_class_of(SIZE)].kept_count;
    require(kept == 0, "%u empty spans are kept", kept);
}

static void frees_of_large_blocks_let_depots_decay(void)
{
    enum { FREES = 128 }; /* a thread looks at a depot in every 64th slow call */
    const uint32_t all = fill_the_depot(SIZE);
    pass_delay(); /* from now on nothing was asked of it */
    const uint32_t before = in_depot(SIZE);
    require(before > 0 && before <= all, "the depot holds %u blocks", before);
    clock_ms += (uint64_t)hz_cfg.decay_ms;
    for (int i = 0; i < FREES; i++) hz_free(hz_malloc(HZ_CLASS_MAX_BYTES + 1));
    require(in_depot(SIZE) < before, "all %u blocks stay", before);
}

static const check checks[] = {
    {"blocks that no request takes from a depot go to the spans in time",
     what_nobody_asks_a_depot_for_goes_to_the_spans_by_and_by, 0},
    {"a depot keeps what is asked of it", a_depot_keeps_what_is_asked_of_it, 0},
    {"a depot that ran dry keeps everything", a_depot_that_ran_dry_keeps_everything, 0},
    {"nothing goes before the delay has passed", nothing_goes_before_the_delay_has_passed, 0},
    {"one call takes from one depot", one_call_takes_from_one_depot, 0},
    {"one call takes a part of what many blocks owe", one_call_takes_a_part_of_what_many_blocks_owe,
     0},
    {"a child goes on where a depot gave up a part", a_child_goes_on_where_a_depot_gave_up_a_part,
     0},
    {"frees of large blocks let depots decay", frees_of_large_blocks_let_depots_decay, 0},
    {"what a depot gave up goes back to the system", what_a_depot_gave_up_goes_back_to_the_system,
     0},
};

int main(int argc, char **argv)
{
    return run_checks(checks, COUNT(checks), argc, argv);
}
