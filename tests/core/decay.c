/*
 * What goes by the clock: depots give up blocks that no request takes, what is free at last goes
 * back to the system, and threads at work share. hz is given a clock that only the checks move.
 */
#include "check.h"
#include "fake_os.h"

#include <hz/hz.h>

#include <unistd.h>

#include "internal.h"

enum { SIZE = 512, BLOCKS = 4096, ASKED = 64, OTHER_SIZE = 64, LOOKS = 20 };

_Atomic uint64_t os_ms = 1000;

static void pass_delay(void)
{
    os_ms += (uint64_t)hz_cfg.decay_ms;
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

CHECK("blocks that no request takes from a depot go to the spans in time")
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

CHECK("a depot keeps what is asked of it")
{
    (void)fill_the_depot(SIZE);
    for (int look = 0; look < LOOKS; look++) {
        ask_the_depot();
        pass_delay();
    }
    require(in_depot(SIZE) == ASKED, "%u blocks stay, and %d are asked for", in_depot(SIZE), ASKED);
}

CHECK("a depot that ran dry keeps everything")
{
    void *blocks[BLOCKS];
    const uint32_t all = fill_the_depot(SIZE);
    take_from_the_depot(blocks, all);
    require(in_depot(SIZE) == 0, "%u blocks are left", in_depot(SIZE));
    hz_depot_give(0, hz_class_of(SIZE), blocks, all);
    pass_delay();
    require(in_depot(SIZE) == all, "%u of %u blocks stay", in_depot(SIZE), all);
}

CHECK("nothing goes before the delay has passed")
{
    const uint32_t all = fill_the_depot(SIZE);
    os_ms += (uint64_t)hz_cfg.decay_ms - 1;
    let_decay();
    require(in_depot(SIZE) == all, "%u of %u blocks stay", in_depot(SIZE), all);
}

CHECK("one call takes from one depot")
{
    const uint32_t all = fill_the_depot(SIZE);
    const uint32_t others = fill_the_depot(OTHER_SIZE);
    pass_delay(); /* of both from now on nothing was asked */
    const uint32_t before = in_depot(SIZE) + in_depot(OTHER_SIZE);
    require(before < all + others, "nothing decays");
    os_ms += (uint64_t)hz_cfg.decay_ms;
    require(hz_decay(), "nothing is due");
    const uint32_t one = in_depot(SIZE) + in_depot(OTHER_SIZE);
    require(one < before, "it took nothing");
    require(hz_decay(), "the other depot is not due");
    const uint32_t both = in_depot(SIZE) + in_depot(OTHER_SIZE);
    require(both < one, "the second call took nothing");
}

CHECK("one call takes a part of what many blocks owe")
{
    enum { A_PART = 1024 };
    const uint32_t before = fill_the_depot(SIZE);
    require(before / 2 > A_PART, "the depot holds only %u blocks", before);
    os_ms += (uint64_t)hz_cfg.decay_ms;
    require(hz_decay(), "nothing is due");
    require(before - in_depot(SIZE) <= A_PART, "%u at once", before - in_depot(SIZE));
    let_decay();
    require(in_depot(SIZE) == before / 2, "%u of %u blocks stay", in_depot(SIZE), before);
}

CHECK("a child goes on where a depot gave up a part")
{
    const uint32_t before = fill_the_depot(SIZE);
    os_ms += (uint64_t)hz_cfg.decay_ms;
    require(hz_decay() && in_depot(SIZE) > before / 2, "nothing is left to give up");
    const pid_t child = fork();
    require(child != -1, "fork");
    let_decay();
    require(in_depot(SIZE) == before / 2, "%u of %u blocks stay", in_depot(SIZE), before);
    for (int look = 0; look < LOOKS; look++) pass_delay();
    require(in_depot(SIZE) == 0 && hz_usage_now().free_bytes == 0, "not all goes back");
    if (child == 0) _exit(0);
    require_child_ends(child);
}

CHECK("frees of large blocks let depots decay")
{
    enum { FREES = 128 }; /* a thread looks at a depot in every 64th slow call */
    const uint32_t all = fill_the_depot(SIZE);
    pass_delay(); /* from now on nothing was asked of it */
    const uint32_t before = in_depot(SIZE);
    require(before > 0 && before <= all, "the depot holds %u blocks", before);
    os_ms += (uint64_t)hz_cfg.decay_ms;
    for (int i = 0; i < FREES; i++) hz_free(hz_malloc(HZ_CLASS_MAX_BYTES + 1));
    require(in_depot(SIZE) < before, "all %u blocks stay", before);
}

/* ---- rings ---------------------------------------------------------------------------------- */

enum { LONG = 8000, MANY = 200, RING_MOST = 256 * 1024 };
static void *others[MANY];

static void *allocate_for_another(void *unused)
{
    for (size_t i = 0; i < MANY; i++) others[i] = hz_malloc(LONG);
    return unused;
}

static void *trim(void *unused)
{
    (void)hz_trim();
    return unused;
}

CHECK("a ring holds 256 KiB at most, and is emptied in the first slow call after a trim")
{
    hz_free(hz_malloc(SIZE)); /* now this thread has a heap */
    const hz_heap *heap = hz_heap_mine;
    if (hz_map.shards == 1) return;
    (void)thread_end(thread_start(allocate_for_another, NULL));
    for (size_t i = 0; i < MANY; i++) {
        hz_free(others[i]);
        require(heap->ring_bytes < RING_MOST, "%zu bytes wait", heap->ring_bytes);
    }
    require(heap->ring_count > 0, "the blocks are not of another shard");
    (void)thread_end(thread_start(trim, NULL));
    hz_free(hz_malloc(OTHER_SIZE));
    require(heap->ring_count == 0, "%u blocks wait", heap->ring_count);
}

/* ---- budgets -------------------------------------------------------------------------------- */

enum { AT_WORK = 4 };
static pthread_barrier_t barrier;
static size_t whole;

static void *share_the_bytes(void *unused)
{
    hz_free(hz_malloc(SIZE)); /* it runs short */
    (void)pthread_barrier_wait(&barrier);
    const size_t part = hz_budget_of(hz_heap_mine);
    require(part <= whole / AT_WORK, "%zu of %zu bytes for one", part, whole);
    (void)pthread_barrier_wait(&barrier);
    return unused;
}

CHECK("threads at work share the bytes of magazines after an uptime of 18 days, too")
{
    crowd threads;
    hz_free(hz_malloc(SIZE));
    whole = hz_budget_of(hz_heap_mine);
    os_ms = UINT64_C(3) << 29;
    (void)pthread_barrier_init(&barrier, NULL, AT_WORK);
    crowd_start(&threads, AT_WORK, share_the_bytes);
    crowd_end(&threads);
}
