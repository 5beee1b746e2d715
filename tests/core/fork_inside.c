/*
 * What a child finds that was forked while another thread was in the middle of a change: each check
 * stops a thread at one such place for good, and forks.
 */
#include "check.h"
#include "fake_os.h"

#include <hz/hz.h>

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pages.h"

enum { BLOCKS = 6000, SIZE = 1000, CHILD_SECONDS = 20 };
#define LARGE ((size_t)8 << 20)
#define HUGE ((size_t)3 << 30)

static atomic_int stopped_in = -1; /* the system call that is not to return, in threads that stop */
static atomic_int let_pass;        /* calls of it that return before */
static atomic_bool is_stopped;
static _Thread_local bool stops;

static void stop_for_good(void)
{
    atomic_store(&is_stopped, true);
    for (;;) (void)pause();
}

/* ---- system calls that do not return -------------------------------------------------------- */

long os_call(long number, const long words[HZ_OS_CALL_WORDS])
{
    const bool is_purge =
        number == SYS_mmap && words[2] == PROT_NONE && (words[3] & MAP_FIXED) != 0;
    const int call = is_purge ? SYS_madvise : (int)number; /* so it is under TEST_STRICT */
    if (stops && atomic_load(&stopped_in) == call && atomic_fetch_sub(&let_pass, 1) <= 0)
        stop_for_good();
    return os_call_behind(number, words);
}

/* ---- the thread that is lost ---------------------------------------------------------------- */

static void *run_until_stopped(void *act)
{
    stops = true;
    (*(void (**)(void))act)();
    check_failed(__FILE__, __LINE__, "the thread was not stopped");
}

static void stop_a_thread(void (*act)(void))
{
    static void (*chosen)(void);
    chosen = act;
    (void)thread_start(run_until_stopped, &chosen);
    while (!atomic_load(&is_stopped)) (void)usleep(1000);
}

static void (*act_early)(void); /* what a handler does in the child, before hz's own handler */

static bool forks_early; /* whether it forks before, which repairs hz */
static bool goes_on;     /* whether the child goes on then */

static void do_early(void)
{
    void (*const act)(void) = act_early;
    if (act == NULL) return;
    (void)alarm(CHILD_SECONDS);
    act_early = NULL;
    const pid_t grandchild = forks_early ? fork() : -1;
    if (grandchild == 0) _exit(0);
    if (forks_early) require_child_ends(grandchild);
    act();
    if (!goes_on) _exit(0);
}

__attribute__((constructor(101))) static void register_before_hz(void)
{
    (void)pthread_atfork(NULL, NULL, do_early);
}

static void require_in_child(void (*act)(void))
{
    act_early = NULL;
    require_of_child(act);
    act_early = act;
    require_of_child(act);
    forks_early = true;
    require_of_child(act);
}

/* ---- a bin ---------------------------------------------------------------------------------- */

static unsigned char *blocks[BLOCKS];

static void fill(void)
{
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = filled_block(hz_malloc(SIZE), SIZE);
        memset(blocks[i], (int)(i % 251), SIZE);
    }
}

static void free_every(size_t step)
{
    for (size_t i = 0; i < BLOCKS; i += step) {
        hz_free(blocks[i]);
        blocks[i] = NULL;
    }
}

/* Spoils all of a bin that may be half changed. */
static void hold_a_bin(void)
{
    const uint32_t class_ = hz_class_of(SIZE);
    hz_bin *bin = &hz_shards[hz_heap_mine->shard % hz_map.shards].bins[class_];
    hz_page_info *span = hz_span_of(blocks[1]);
    hz_lock_take(&bin->lock);
    bin->spans = bin->kept = span->next = span->previous = (hz_page_info *)8;
    span->free_count = span->scan_word = 123456;
    span->listing = HZ_SPAN_KEPT;
    stop_for_good();
}

static void use_and_free_all(void)
{
    for (size_t i = 0; i < BLOCKS; i++) {
        if (blocks[i] == NULL) continue;
        require(blocks[i][SIZE - 1] == i % 251, "block %zu changed", i);
        hz_free(blocks[i]);
    }
    (void)hz_trim();
    fill();
    for (size_t i = 0; i < BLOCKS; i++)
        require(blocks[i][0] == i % 251 && blocks[i][SIZE - 1] == i % 251, "two owners of %zu", i);
    free_every(1);
    const size_t before = hz_span_cut_bytes();
    (void)hz_trim();
    require(hz_span_cut_bytes() < before / 8, "%zu of %zu bytes stay in spans", hz_span_cut_bytes(),
            before);
}

CHECK("a bin that another thread was changing is made anew of its spans")
{
    fill();
    free_every(2);
    (void)hz_trim();
    stop_a_thread(hold_a_bin);
    require_in_child(use_and_free_all);
}

/* ---- the page pool -------------------------------------------------------------------------- */

static void use_pages(void)
{
    for (size_t size = 1; size < 4 * LARGE; size += size / 2 + 1)
        hz_free(filled_block(hz_malloc(size), size));
}

static void make_free_pages(void)
{
    hz_free(filled_block(hz_malloc(LARGE), LARGE));
}

static void ask_for_more(void)
{
    (void)hz_malloc(HUGE);
}

CHECK("the page pool and the arena go on where another thread was extending them")
{
    make_free_pages();
    atomic_store(&stopped_in, SYS_mmap);
    stop_a_thread(ask_for_more);
    require_in_child(use_pages);
}

static void trim(void)
{
    (void)hz_trim();
}

static void stop_a_thread_that_purges(void)
{
    make_free_pages();
    atomic_store(&stopped_in, SYS_madvise);
    atomic_store(&let_pass, 3);
    stop_a_thread(trim);
}

CHECK("a run that another thread was purging is free")
{
    stop_a_thread_that_purges();
    require_in_child(use_pages);
}

/* ---- depots and inboxes --------------------------------------------------------------------- */

static bool only_depots;

static void hold_all_locks_of_shards(void)
{
    for (uint32_t shard = 0; shard < hz_map.shards; shard++) {
        if (!only_depots) hz_lock_take(&hz_shards[shard].inbox.lock);
        for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
            hz_lock_take(&hz_shards[shard].depots[class_].lock);
            if (!only_depots) hz_lock_take(&hz_shards[shard].bins[class_].lock);
        }
    }
    stop_for_good();
}

CHECK("locks that another thread held are free")
{
    fill();
    free_every(3);
    stop_a_thread(hold_all_locks_of_shards);
    require_in_child(use_and_free_all);
}

CHECK("locks of depots alone that another thread held are free, whatever way one waits for them")
{
    only_depots = true;
    fill();
    free_every(3);
    stop_a_thread(hold_all_locks_of_shards);
    require_in_child(use_and_free_all);
}

/* ---- threads that a child has before hz's handler, or without one ---------------------------- */

static void *hold_until_another_waits(void *unused)
{
    uintptr_t word;
    hz_lock_take(&hz_page_pool.lock);
    atomic_store(&is_stopped, true);
    while ((word = hz_atomic_peek(&hz_page_pool.lock.word)) == hz_lock_me()) (void)usleep(1000);
    require(word == (hz_lock_me() | HZ_LOCK_SLEEPERS), "it was taken from its holder");
    hz_lock_release(&hz_page_pool.lock);
    return unused;
}

static pthread_t holder;

static void start_a_holder(void)
{
    (void)alarm(CHILD_SECONDS);
    hz_fork_notice(); /* as libhz.so's pthread_create does */
    holder = thread_start(hold_until_another_waits, NULL);
    while (!atomic_load(&is_stopped)) (void)usleep(1000);
}

static void require_that_a_child_waits_for_it(pid_t child)
{
    if (child != 0) {
        require_child_ends(child);
        return;
    }
    hz_free(hz_malloc(4 * LARGE));
    (void)thread_end(holder);
    _exit(0);
}

CHECK("a lock that a thread of a bare child holds stays its own")
{
    hz_free(hz_malloc(LARGE));
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) start_a_holder();
    require_that_a_child_waits_for_it(child);
}

CHECK("a lock that a thread of an early handler holds stays its own")
{
    hz_free(hz_malloc(LARGE));
    goes_on = true;
    act_early = start_a_holder;
    require_that_a_child_waits_for_it(fork());
}

int main(int argc, char **argv)
{
    hz_map.nodes = (uint32_t)number_chosen("TEST_NODES", 1);
    return run_checks(argc, argv);
}
