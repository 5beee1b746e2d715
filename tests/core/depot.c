/*
 * How a depot grows: one that was full, and empty later, was too small for a program that frees
 * and allocates in turn.
 */
#include "check.h"

#include <hz/hz.h>

#include "internal.h"

enum { SIZE = 32, LONG_SIZE = 4096, BLOCKS = 100000, GROWTH = 16 };

static void *blocks[BLOCKS];

static const hz_depot *depot_of(size_t size)
{
    return &hz_shards[0].depots[hz_class_of(size)];
}

static uint32_t first_capacity(void)
{
    return (uint32_t)(hz_cfg.depot_slots * hz_cfg.flush_batch);
}

static void allocate(size_t count, size_t size)
{
    for (size_t i = 0; i < count; i++) {
        blocks[i] = hz_malloc(size);
        require(blocks[i] != NULL, "no memory");
        ((unsigned char *)blocks[i])[0] = (unsigned char)i;
    }
}

static void free_all(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        require(((unsigned char *)blocks[i])[0] == (unsigned char)i, "block %zu changed", i);
        hz_free(blocks[i]);
    }
}

static void a_depot_that_was_full_and_then_empty_doubles(void)
{
    allocate(BLOCKS, SIZE);
    free_all(BLOCKS);
    require(depot_of(SIZE)->capacity == first_capacity(), "it grew before it was empty");
    allocate(BLOCKS, SIZE);
    require(depot_of(SIZE)->capacity == 2 * first_capacity(), "it holds %u blocks",
            depot_of(SIZE)->capacity);
    free_all(BLOCKS);
    require(depot_of(SIZE)->count == depot_of(SIZE)->capacity, "it holds %u blocks of %u",
            depot_of(SIZE)->count, depot_of(SIZE)->capacity);
}

static void a_depot_that_is_never_empty_after_it_was_full_stays_as_it_is(void)
{
    allocate(BLOCKS, SIZE);
    free_all(BLOCKS);
    for (int turn = 0; turn < 8; turn++) {
        allocate(first_capacity() / 2, SIZE);
        free_all(first_capacity() / 2);
    }
    require(depot_of(SIZE)->capacity == first_capacity(), "it holds %u blocks",
            depot_of(SIZE)->capacity);
}

static void a_depot_that_is_never_full_stays_as_it_is(void)
{
    for (int turn = 0; turn < 8; turn++) {
        allocate(first_capacity() / 2, SIZE);
        free_all(first_capacity() / 2);
    }
    require(depot_of(SIZE)->capacity == first_capacity(), "it holds %u blocks",
            depot_of(SIZE)->capacity);
}

static void swing(size_t count, size_t size)
{
    for (int turn = 0; turn < 8; turn++) {
        allocate(count, size);
        free_all(count);
    }
}

static void a_depot_grows_to_sixteen_times_its_first_capacity(void)
{
    swing(BLOCKS, SIZE);
    require(depot_of(SIZE)->capacity == GROWTH * first_capacity(), "it holds %u blocks",
            depot_of(SIZE)->capacity);
}

static void a_depot_never_holds_more_than_four_mebibytes(void)
{
    swing(4096, LONG_SIZE);
    const size_t bytes =
        depot_of(LONG_SIZE)->capacity * (size_t)hz_class_bytes[hz_class_of(LONG_SIZE)];
    require(bytes <= (size_t)4 << 20, "%zu bytes fit", bytes);
}

static const check checks[] = {
    {"a depot that was full and then empty doubles", a_depot_that_was_full_and_then_empty_doubles,
     0},
    {"a depot that is never empty after it was full stays as it is",
     a_depot_that_is_never_empty_after_it_was_full_stays_as_it_is, 0},
    {"a depot that is never full stays as it is", a_depot_that_is_never_full_stays_as_it_is, 0},
    {"a depot grows to sixteen times its first capacity",
     a_depot_grows_to_sixteen_times_its_first_capacity, 0},
    {"a depot never holds more than four mebibytes", a_depot_never_holds_more_than_four_mebibytes,
     0},
};

int main(int argc, char **argv)
{
    require(hz_set("decay_ms", "60000", NULL, 0) == HZ_SET_DONE, "decay_ms cannot be set");
    return run_checks(checks, COUNT(checks), argc, argv);
}
