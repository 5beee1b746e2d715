/*
 * The runner: threads, turns and the counted window.
 *
 * Players work in steps and look at the turn word between steps, so they can be parked at any
 * moment without holding anything. Without a conductor the main thread plays one: it gives a single
 * long turn and reads the counters at both ends of the window, so that the start and the end of
 * threads lie outside.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "mailbox.h"
#include "procfs.h"

enum {
    STACK_BYTES = 256 * 1024, /* of a player's thread; small, so that births stay cheap */
    SPINS = 64,               /* looks before a waiting player yields its CPU */
    YIELDS = 256,             /* further looks, each after a yield, before it sleeps */
    YIELDS_IN_A_CROWD = 16,   /* the same where many wait, and another player will wake it */
    NAP_NS = 50000,           /* shortest sleep of a waiting player; the longest is twice this */
    SAMPLE_NS = 20 * 1000 * 1000, /* between two looks at the live bytes */
};

static void *player_main(void *argument);

/* --- a player's thread ----------------------------------------------------------------------- */

static void start_thread(hz_player *p)
{
    pthread_attr_t attributes;
    pthread_t thread;
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    const int error = pthread_create(&thread, &attributes, player_main, p);
    if (error != 0) hz_fail("cannot start a thread: %s", strerror(error));
    (void)pthread_attr_destroy(&attributes);
}

/* Publishes what the system knows of this thread, added to what its predecessors had. */
static void publish_usage(hz_player *p)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_THREAD, &usage);
    atomic_store_explicit(&p->slot->involuntary, p->past_involuntary + (uint64_t)usage.ru_nivcsw,
                          memory_order_relaxed);
}

static void publish_work(hz_player *p)
{
    atomic_store_explicit(&p->slot->ops, p->ops, memory_order_relaxed);
    atomic_store_explicit(&p->slot->live_bytes, p->live_bytes, memory_order_relaxed);
}

/* Keeps the highest sum of live bytes that was seen. */
static void look_at_live_bytes(hz_run *run)
{
    const int64_t live = hz_turn_live_bytes(run->page);
    if (live > atomic_load_explicit(&run->live_peak_bytes, memory_order_relaxed))
        atomic_store_explicit(&run->live_peak_bytes, live, memory_order_relaxed);
}

/* Counts this player as parked; the conductor may be waiting for that. */
static void count_in(hz_player *p)
{
    hz_turn_page *page = p->run->page;
    publish_usage(p);
    hz_scatter_enter(&p->run->scatter, p->index);
    atomic_store(&p->slot->parked, 1);
    atomic_fetch_add(&page->parked, 1);
    if (hz_turn_all_parked(page)) {
        look_at_live_bytes(p->run);
        hz_futex_wake(&page->parked);
    }
}

/* Waits for a turn; false when there will be none. */
static bool park(hz_player *p)
{
    hz_turn_page *page = p->run->page;
    uint32_t turn;
    atomic_fetch_add(&page->halted, 1);
    count_in(p);
    while ((turn = atomic_load(&page->turn)) == HZ_TURN_PARK)
        hz_futex_wait(&page->turn, HZ_TURN_PARK, -1);
    hz_futex_wake_some(&page->turn, 2); /* see hz_turn_give */
    atomic_fetch_sub(&page->halted, 1);
    hz_scatter_leave(&p->run->scatter);
    atomic_fetch_sub(&page->parked, 1);
    atomic_store(&p->slot->parked, 0);
    return turn != HZ_TURN_QUIT;
}

/*
 * Wakes a player that sleeps in sleep_until_woken(), if it does. The waker counts it out: so it is
 * not counted as parked any more when the waker itself parks, and no turn ends while it is waking.
 */
void hz_wake(hz_player *p)
{
    if (atomic_load(&p->asleep) == 0 || atomic_exchange(&p->asleep, 0) == 0) return;
    atomic_fetch_sub(&p->run->page->parked, 1);
    hz_futex_wake(&p->asleep);
}

/* At the end: whatever sleeps shall see it. */
static void wake_all(hz_run *run)
{
    if (run->workload->arm == NULL) return;
    for (unsigned i = 0; i < run->threads; i++) hz_wake(&run->players[i]);
}

/*
 * Sleeps until another player or the end wakes this one; it counts as parked meanwhile, so that a
 * turn can end. Either it sees here that it can go on, or the other one sees that it is asleep.
 */
static void sleep_until_woken(hz_player *p)
{
    hz_turn_page *page = p->run->page;
    count_in(p);
    atomic_store(&p->asleep, 1);
    if (atomic_load(&page->turn) == HZ_TURN_QUIT || !p->run->workload->arm(p))
        if (atomic_exchange(&p->asleep, 0) == 1) atomic_fetch_sub(&page->parked, 1);
    while (atomic_load(&p->asleep) != 0) hz_futex_wait(&p->asleep, 1, -1);
    hz_scatter_leave(&p->run->scatter);
    atomic_store(&p->slot->parked, 0);
}

/*
 * Waiting for another player: look again at once a few times if that player can be running at the
 * same time, then yield, then sleep: until it is woken, or for a random time, so that players that
 * wait for each other do not fall into a rhythm.
 */
static void wait_a_moment(hz_player *p)
{
    const bool crowded = p->run->threads > p->run->cpus;
    const bool is_woken = p->run->workload->arm != NULL && p->quota != 0;
    const uint64_t spins = crowded ? 0 : SPINS;
    const uint64_t yields = is_woken && crowded ? YIELDS_IN_A_CROWD : YIELDS;
    p->waits++;
    if (p->waits <= spins) return;
    if (p->waits <= spins + yields) {
        (void)sched_yield();
    } else if (is_woken) {
        sleep_until_woken(p);
    } else {
        const uint32_t nap = NAP_NS + hz_scale(hz_low(hz_random(&p->wait_rng)), NAP_NS);
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = (long)nap}, NULL);
    }
}

/* A new thread goes on with this player. The thread that worked before this one has long ended and
 * is joined now. */
static void hand_over(hz_player *p)
{
    p->hand_over = false;
    publish_usage(p);
    p->past_involuntary = atomic_load_explicit(&p->slot->involuntary, memory_order_relaxed);
    if (p->has_previous) (void)pthread_join(p->previous, NULL);
    p->previous = pthread_self();
    p->has_previous = true;
    start_thread(p);
}

/* What each player with an inbox does for the others. */
static bool serve_others(hz_player *p)
{
    if (p->inbox != NULL) hz_empty_inbox(p);
    return hz_post_again(p);
}

/* Serves the others; true when the player owes them nothing. Only fixed work is still counted. */
static bool drain_player(hz_player *p)
{
    size_t done = 0;
    const hz_workload *workload = p->run->workload;
    const bool is_settled = workload->drain != NULL ? workload->drain(p, &done) : serve_others(p);
    if (p->run->options->ops != 0) p->ops += done;
    publish_work(p);
    return is_settled;
}

/*
 * The player's last acts: hand over what it owes, serve the others until all have done so, then
 * free everything; but a conductor does not wait for that. No player is done while a block of its
 * own is on its way to a mailbox, so the last look into one finds all that will ever come.
 */
static void finish_player(hz_player *p)
{
    hz_run *run = p->run;
    p->finished_ns = hz_clock_ns();
    p->thread = pthread_self();
    for (p->waits = 0; !drain_player(p); wait_a_moment(p)) continue;
    publish_work(p);
    atomic_fetch_add(&run->done, 1);
    hz_futex_wake(&run->done);
    for (p->waits = 0; atomic_load(&run->done) < run->threads; wait_a_moment(p))
        (void)drain_player(p);
    (void)drain_player(p);
    publish_usage(p);
    (void)pthread_barrier_wait(&run->stopped);
    if (run->options->turns_fd >= 0) return;
    if (run->workload->end != NULL) run->workload->end(p);
    if (p->inbox != NULL) hz_empty_inbox(p);
    hz_give_rest(p, &p->unsent.block, 1);
    hz_give_rest(p, p->slots, p->slot_count);
    publish_work(p);
}

static void begin_work(hz_player *p)
{
    const hz_workload *workload = p->run->workload;
    if (p->run->options->rests != 0) hz_harness_note(&p->mapped);
    p->state = hz_harness_alloc(workload->state_bytes + p->slot_count * sizeof(hz_block) + 1);
    p->slots = (void *)((char *)p->state + workload->state_bytes);
    p->unsent = (hz_unsent){{NULL, 0}, NULL};
    if (workload->begin != NULL) workload->begin(p);
    hz_harness_note(NULL);
    publish_work(p);
}

/* Rests with all others when everything is freed; true: there is another round, which has begun. */
static bool rest(hz_player *p)
{
    hz_run *run = p->run;
    if (run->options->rests == 0) return false;
    hz_harness_give_back(&p->mapped);
    (void)pthread_barrier_wait(&run->stopped);
    (void)pthread_barrier_wait(&run->stopped);
    if (run->rests_left == 0) return false;
    begin_work(p);
    return true;
}

/* Whether the player obeys the turn word here and now: in the middle of a round it may not park. */
static bool may_park(const hz_player *p)
{
    const hz_turn_page *page = p->run->page;
    return page->is_whole == 0 || atomic_load(&page->turn) == HZ_TURN_QUIT ||
           p->run->workload->between(p);
}

/* Steps until the turn word, the quota or a hand-over ends it; true: the player has finished. */
static bool work(hz_player *p)
{
    hz_turn_page *page = p->run->page;
    const hz_workload *workload = p->run->workload;
    const unsigned batch = workload->batch != 0 ? workload->batch : HZ_BATCH;
    for (;;) {
        if (HZ_UNLIKELY(atomic_load_explicit(&page->turn, memory_order_relaxed) != HZ_TURN_RUN) &&
            may_park(p) && !park(p)) {
            wake_all(p->run);
            p->quota = 0;
            return true;
        }
        if (HZ_UNLIKELY(p->quota == 0)) return true;
        const size_t done = workload->step(p, p->quota < batch ? (size_t)p->quota : batch);
        p->ops += done;
        p->quota -= done;
        publish_work(p);
        if (HZ_UNLIKELY(done == 0))
            wait_a_moment(p);
        else
            p->waits = 0;
        if (HZ_UNLIKELY(p->hand_over)) return false;
    }
}

static void *player_main(void *argument)
{
    hz_player *p = argument;
    if (!p->begun) {
        p->begun = true;
        begin_work(p);
    }
    while (work(p)) {
        finish_player(p);
        if (!rest(p)) return NULL;
    }
    hand_over(p);
    return NULL;
}

/* --- the main thread ------------------------------------------------------------------------- */

/* The page of the conductor behind `fd`. */
static hz_turn_page *map_conductor(int fd, const hz_workload *workload)
{
    hz_turn_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        hz_refuse("--turns %d: not a conductor's memory: %s", fd, strerror(errno));
    if (memcmp(page->magic, HZ_TURNS_MAGIC, sizeof page->magic) != 0)
        hz_refuse("--turns %d: not a conductor's memory", fd);
    if (page->is_whole != 0 && workload->between == NULL)
        hz_refuse("--turns %d: %s has no rounds, with which a turn could end", fd, workload->name);
    return page;
}

static void init_player(hz_run *run, unsigned index)
{
    hz_player *p = &run->players[index];
    const hz_options *options = run->options;
    const int64_t *slots = hz_bench_value(options, run->workload->slots);
    const int64_t *low = hz_bench_value(options, "min_size");
    const int64_t *high = hz_bench_value(options, "max_size");
    *p = (hz_player){
        .rng = hz_random_start(options->seed, index),
        .wait_rng = hz_random_start((uint64_t)hz_clock_ns(), index),
        .run = run,
        .index = index,
        .slot_count = slots != NULL ? (uint32_t)*slots : 0,
        .slot = &run->page->slots[index],
    };
    if (low != NULL && high != NULL)
        p->sizes = (hz_sizes){(uint32_t)*low, (uint64_t)(*high - *low + 1)};
    if (options->latency) p->instruments = hz_instruments_new();
}

/* An even share, unless the workload has its own rule. Consumers serve the producers until these
 * have done theirs. */
static uint64_t quota_of(const hz_run *run, unsigned index)
{
    const hz_workload *workload = run->workload;
    if (workload->quota != NULL) return workload->quota(run, index);
    const unsigned workers = workload->has_producers ? hz_producer_count(run) : run->threads;
    const uint64_t ops = workload->has_producers ? run->options->ops / 2 : run->options->ops;
    return index < workers ? ops / workers + (index < ops % workers) : 0;
}

static void give_quotas(hz_run *run)
{
    for (unsigned i = 0; i < run->threads; i++)
        run->players[i].quota = run->options->ops == 0 ? UINT64_MAX : quota_of(run, i);
}

/* Makes the run that `options` ask for; threads are not started yet. */
void hz_run_init(hz_run *run, const hz_options *options)
{
    *run = (hz_run){
        .options = options,
        .workload = options->workload,
        .values = options->values,
        .threads = options->threads,
        .cpus = hz_cpu_count(),
        .page = options->turns_fd >= 0 ? map_conductor(options->turns_fd, options->workload)
                                       : hz_harness_alloc(sizeof(hz_turn_page)),
        .players = hz_harness_alloc(options->threads * sizeof(hz_player)),
    };
    hz_scatter_init(&run->scatter, run->threads, hz_random_start((uint64_t)hz_clock_ns(), 0));
    (void)pthread_barrier_init(&run->stopped, NULL, run->threads + 1);
    for (unsigned i = 0; i < run->threads; i++) init_player(run, i);
    if (run->workload->prepare != NULL) run->workload->prepare(run);
    run->rests_left = options->rests;
    give_quotas(run);
}

/* Lets the players work until `end_ns`, or until all are done. */
static void watch_until(hz_run *run, int64_t end_ns)
{
    uint32_t done;
    int64_t now;
    while ((done = atomic_load(&run->done)) < run->threads && (now = hz_clock_ns()) < end_ns) {
        hz_futex_wait(&run->done, done, end_ns - now < SAMPLE_NS ? end_ns - now : SAMPLE_NS);
        look_at_live_bytes(run);
    }
}

/* A reading of everything that is counted. */
typedef struct reading {
    int64_t ns;
    uint64_t ops;
    double cpu_s;
    uint64_t minor_faults;
} reading;

static reading read_counters(hz_run *run)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (reading){
        .ns = hz_clock_ns(),
        .ops = hz_turn_ops(run->page),
        .cpu_s = hz_usage_cpu_s(&usage),
        .minor_faults = (uint64_t)usage.ru_minflt,
    };
}

static void wait_until_all_parked(hz_run *run)
{
    while (!hz_turn_all_parked(run->page)) {
        const uint32_t parked = atomic_load(&run->page->parked);
        if (parked != run->threads) hz_futex_wait(&run->page->parked, parked, -1);
    }
}

static int64_t ns_of(double seconds)
{
    return (int64_t)(seconds * 1e9);
}

/* Tells libhz-ledger.so (experiments/scale) that the counted window begins, or ends. Only with
 * HZ_LEDGER in the environment: else nothing is called, or even looked up. */
static void tell_window(bool begins)
{
    void (*window)(bool begins) = NULL;
    if (getenv("HZ_LEDGER") != NULL) *(void **)&window = dlsym(RTLD_DEFAULT, "hz_ledger_window");
    if (window != NULL) window(begins);
}

/* A counted window of fixed length after a warm-up. */
static void run_for_time(hz_run *run, reading *first, reading *last)
{
    hz_turn_give(run->page, HZ_TURN_RUN);
    watch_until(run, hz_clock_ns() + ns_of(run->options->warmup));
    tell_window(true);
    *first = read_counters(run);
    watch_until(run, first->ns + ns_of(run->options->seconds));
    *last = read_counters(run);
    tell_window(false);
    hz_turn_give(run->page, HZ_TURN_QUIT);
    watch_until(run, INT64_MAX);
    (void)pthread_barrier_wait(&run->stopped);
}

/* Fixed work: the window ends when the last player has done its quota; what was on its way to
 * others then is still counted. */
static void run_for_ops(hz_run *run, reading *first, reading *last)
{
    *first = read_counters(run);
    hz_turn_give(run->page, HZ_TURN_RUN);
    watch_until(run, INT64_MAX);
    (void)pthread_barrier_wait(&run->stopped);
    *last = read_counters(run);
    last->ns = first->ns;
    for (unsigned i = 0; i < run->threads; i++)
        if (run->players[i].finished_ns > last->ns) last->ns = run->players[i].finished_ns;
}

/* A conductor gives the turns; the window is all of them. */
static void run_for_conductor(hz_run *run, reading *first, reading *last)
{
    *first = read_counters(run);
    for (uint32_t done; (done = atomic_load(&run->done)) < run->threads;)
        hz_futex_wait(&run->done, done, -1);
    (void)pthread_barrier_wait(&run->stopped);
    *last = read_counters(run);
    last->ns = first->ns + (int64_t)atomic_load(&run->page->worked_ns);
}

static void join_players(hz_run *run)
{
    for (unsigned i = 0; i < run->threads; i++) {
        hz_player *p = &run->players[i];
        if (p->has_previous) (void)pthread_join(p->previous, NULL);
        (void)pthread_join(p->thread, NULL);
    }
}

/* One counted window, added to the result. */
static void run_once(hz_run *run, hz_result *result)
{
    reading first;
    reading last;
    if (run->options->turns_fd >= 0) {
        run_for_conductor(run, &first, &last);
    } else {
        wait_until_all_parked(run);
        (run->options->ops != 0 ? run_for_ops : run_for_time)(run, &first, &last);
    }
    result->seconds += (double)(last.ns - first.ns) * 1e-9;
    result->cpu_s += last.cpu_s - first.cpu_s;
    result->ops += last.ops - first.ops;
    result->minor_faults += last.minor_faults - first.minor_faults;
}

/* The players have freed everything and wait: rests, and prepares another round if there is one. */
static void rest_all(hz_run *run)
{
    (void)pthread_barrier_wait(&run->stopped);
    hz_harness_rest();
    run->rests_left--;
    atomic_store(&run->done, 0);
    hz_turn_give(run->page, HZ_TURN_PARK);
    give_quotas(run);
    (void)pthread_barrier_wait(&run->stopped);
}

/* Runs it from the first thread's start to the last one's end. */
void hz_run_execute(hz_run *run, hz_result *result)
{
    *result = (hz_result){0};
    atomic_store(&run->page->nthreads, run->threads);
    for (unsigned i = 0; i < run->threads; i++) start_thread(&run->players[i]);
    do {
        run_once(run, result);
        if (run->options->rests != 0) rest_all(run);
    } while (run->rests_left > 0);
    join_players(run);
    result->live_peak_kb = atomic_load(&run->live_peak_bytes) / 1024;
}
