/*
 * What changes while a process runs: parameters, where hz's messages go, what happens without
 * memory; and what hz_trim asks of other threads.
 */
#include "check.h"

#include <hz/hz.h>
#include <hz/params.h>

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "internal.h"

enum { MESSAGE = 300, SIZE = 512, BLOCKS = 64, CHANGES = 2000 };

static char message[MESSAGE];

static void require_set(const char *name, const char *value)
{
    const hz_set_status status = hz_set(name, value, message, sizeof message);
    require(status == HZ_SET_DONE, "%s=%s: %s", name, value, message);
}

static void require_got(const char *name, const char *value)
{
    require(hz_get(name, message, sizeof message) == HZ_SET_DONE, "%s: %s", name, message);
    require(strcmp(message, value) == 0, "%s is %s, not %s", name, message, value);
}

static void require_refused(hz_set_status why, const char *name, const char *value,
                            const char *said)
{
    const hz_set_status status = hz_set(name, value, message, sizeof message);
    require(status == why && strstr(message, said) != NULL, "%s=%s: status %d, it says: %s", name,
            value, (int)status, message);
}

/* ---- parameters ----------------------------------------------------------------------------- */

CHECK("each parameter changes if its row says so")
{
    for (size_t i = 0; i < hz_param_count(); i++) {
        const hz_param *param = hz_param_at(i);
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)param->high);
        if (param->is_live) {
            require_set(param->name, text);
            require_got(param->name, text);
        } else {
            require_refused(HZ_SET_FIXED, param->name, param->default_text, param->env);
        }
    }
}

CHECK("a wrong value or name is refused with what is legal")
{
    require_refused(HZ_SET_ILLEGAL, "decay_ms", "60001",
                    "decay_ms is \"60001\"; legal is a whole number from 0 to 60000 (ms)");
    require_refused(HZ_SET_ILLEGAL, "decay_ms", "", "a whole number");
    require_refused(HZ_SET_ILLEGAL, "max_dirty_bytes", "3", "a power of two");
    require_got("decay_ms", "100");
    require_refused(HZ_SET_UNKNOWN, "decay", "0", "decay is no parameter of hz");
    require(hz_get("decay", message, sizeof message) == HZ_SET_UNKNOWN, "hz_get knows it");
    require(strstr(message, "no parameter") != NULL, "hz_get says: %s", message);
    require_refused(HZ_SET_UNFIT, "thread_cache_bytes", "65536", "magazine_bytes");
    require_got("thread_cache_bytes", "8388608");
}

CHECK("a message fits any buffer")
{
    char small[8] = "-------";
    require(hz_set("decay_ms", "no number at all", small, 4) == HZ_SET_ILLEGAL, "it is set");
    require(small[3] == '\0' && small[4] == '-', "it wrote beyond 4 bytes");
    require(hz_set("decay_ms", "no number at all", NULL, 0) == HZ_SET_ILLEGAL, "it is set");
}

/* ---- threads -------------------------------------------------------------------------------- */

static atomic_bool over;

static void *allocate_until_it_is_over(void *seed)
{
    uint64_t state = (uint64_t)(uintptr_t)seed;
    void *blocks[BLOCKS] = {NULL};
    while (!atomic_load(&over)) {
        const uint64_t random = random_next(&state);
        hz_free(blocks[random % BLOCKS]);
        blocks[random % BLOCKS] = hz_malloc((random >> 32) % (random & 64 ? 600000 : 4000));
    }
    for (int i = 0; i < BLOCKS; i++) hz_free(blocks[i]);
    return NULL;
}

static void *change_all(void *seed)
{
    static const char *const values[][3] = {
        {"decay_ms", "0", "60000"},          {"max_dirty_bytes", "0", "268435456"},
        {"span_cache", "0", "64"},           {"span_bytes", "65536", "1048576"},
        {"thread_cache_share", "1", "1000"}, {"thread_cache_bytes", "1048576", "67108864"},
        {"growth_rent", "1", "65536"},       {"background_period_us", "0", "64"},
    };
    uint64_t state = (uint64_t)(uintptr_t)seed;
    for (int i = 0; i < CHANGES; i++) {
        const uint64_t random = random_next(&state);
        const char *const *row = values[random % COUNT(values)];
        char why[MESSAGE];
        require(hz_set(row[0], row[1 + (random >> 32) % 2], why, sizeof why) == HZ_SET_DONE, "%s",
                why);
        require(hz_get(row[0], why, sizeof why) == HZ_SET_DONE, "%s", why);
        if (i % 64 == 0) (void)hz_trim();
    }
    return NULL;
}

CHECK_IN(60, "threads may change everything while others allocate")
{
    crowd allocating, changing;
    crowd_start(&allocating, 2, allocate_until_it_is_over);
    crowd_start(&changing, 2, change_all);
    crowd_end(&changing);
    atomic_store(&over, true);
    crowd_end(&allocating);
}

static void change_in_child(void)
{
    require_set("span_cache", "5");
    hz_free(hz_malloc(SIZE));
}

static void have_what_the_parent_has(void)
{
    require_got("decay_ms", "17");
}

CHECK_IN(60, "a child of a fork in a change can change, and begins with what its parent has")
{
    crowd changing;
    crowd_start(&changing, 1, change_all);
    for (int i = 0; i < 100; i++) require_of_child(change_in_child);
    crowd_end(&changing);
    require_set("decay_ms", "17");
    require_of_child(have_what_the_parent_has);
}

static void have_a_background_thread_of_its_own(void)
{
    require(threads_now() == 1, "the child has a thread already");
    require_set("background_period_us", "128");
    wait_for_threads(2);
}

CHECK("the background thread comes and goes, and a child can start one of its own")
{
    for (int i = 0; i < 3; i++) {
        require_set("background_period_us", "64");
        wait_for_threads(2);
        require_set("background_period_us", "0");
        wait_for_threads(1);
    }
    require_set("background_period_us", "64");
    wait_for_threads(2);
    require_of_child(have_a_background_thread_of_its_own);
}

static pthread_barrier_t turn;
static size_t kept_before, kept_after;

/* The last free is of a class that was never used: its magazine is empty. */
static void *keep_blocks_and_call_again(void *unused)
{
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) blocks[i] = hz_malloc(SIZE);
    for (int i = 0; i < BLOCKS; i++) hz_free(blocks[i]);
    kept_before = hz_magazine_count(hz_heap_mine, hz_class_of(SIZE));
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn); /* the trim */
    hz_free(hz_malloc(100000));
    kept_after = hz_magazine_count(hz_heap_mine, hz_class_of(SIZE));
    return unused;
}

CHECK("a trim reaches the magazines of a thread that calls again")
{
    pthread_barrier_init(&turn, NULL, 2);
    const pthread_t other = thread_start(keep_blocks_and_call_again, NULL);
    pthread_barrier_wait(&turn);
    (void)hz_trim();
    pthread_barrier_wait(&turn);
    (void)thread_end(other);
    require(kept_before > 0, "the other thread kept nothing");
    require(kept_after == 0, "it keeps %zu of %zu blocks", kept_after, kept_before);
}

CHECK("no count is below zero whose parts were counted at different times")
{
    hz_free(hz_malloc(SIZE));
    uint32_t *lent = &hz_heap_mine->magazines[hz_class_of(SIZE)]->lease.blocks;
    *lent += 1 << 20; /* as of a lease whose span has got it back since */
    require(hz_usage_now().live_blocks < BLOCKS, "%zu live blocks", hz_usage_now().live_blocks);
    *lent -= 1 << 20;
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static char heard[MESSAGE];
static void hear(const char *text)
{
    snprintf(heard, sizeof heard, "%s", text);
}

CHECK("a hook gets the messages")
{
    require(hz_on_message(hear) == NULL, "there was a hook");
    uint64_t *block = hz_malloc(SIZE);
    hz_free(block);
    block[1] = 0; /* where the seal is */
    hz_free(hz_malloc(SIZE));
    require(strstr(heard, "hz: a block was written to after") == heard, "it heard: %s", heard);
    require(heard[strlen(heard) - 1] == '\n', "the line has no end");
    require(hz_on_message(NULL) == hear, "the hook was another");
}
