/*
 * The runner: threads, turns and the counted window.
 *
 * Workers work in steps and look at the turn word between steps, so they can be parked at any
 * moment without holding anything. Without a conductor the main thread plays one: it gives a single
 * long turn and reads the counters at both ends of the window, so that the start and the end of
 * threads lie outside.
 */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "allocator.h"
#include "bench.h"
#include "procfs.h"

enum {
    STACK_BYTES = 256 * 1024, /* of a worker's thread; small, so that births stay cheap */
    SPINS = 64,               /* looks before a waiting worker yields its CPU */
    YIELDS = 256,             /* further looks, each after a yield, before it sleeps */
    YIELDS_IN_A_CROWD = 16,   /* the same where many wait, and another worker will wake it */
    NAP_NS = 50000,           /* shortest sleep of a waiting worker; the longest is twice this */
    SAMPLE_NS = 20 * 1000 * 1000, /* between two looks at the live bytes */
};

static void *worker_main(void *argument);

/* --- a worker's thread ----------------------------------------------------------------------- */

static void start_thread(hz_worker *w)
{
    pthread_attr_t attributes;
    pthread_t thread;
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES);
    const int error = pthread_create(&thread, &attributes, worker_main, w);
    if (error != 0) hz_fail("cannot start a thread: %s", strerror(error));
    (void)pthread_attr_destroy(&attributes);
}

/* Publishes what the system knows of this thread, added to what its predecessors had. */
static void publish_usage(hz_worker *w)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_THREAD, &usage);
    atomic_store_explicit(&w->slot->involuntary, w->past_involuntary + (uint64_t)usage.ru_nivcsw,
                          memory_order_relaxed);
    atomic_store_explicit(&w->slot->minor_faults, w->past_minor_faults + (uint64_t)usage.ru_minflt,
                          memory_order_relaxed);
}

static void publish_work(hz_worker *w)
{
    atomic_store_explicit(&w->slot->ops, w->ops, memory_order_relaxed);
    atomic_store_explicit(&w->slot->live_bytes, w->live_bytes, memory_order_relaxed);
}

/* Keeps the highest sum of live bytes that was seen. */
static void look_at_live_bytes(hz_run *run)
{
    const int64_t live = hz_turn_live_bytes(run->page);
    if (live > atomic_load_explicit(&run->live_peak_bytes, memory_order_relaxed))
        atomic_store_explicit(&run->live_peak_bytes, live, memory_order_relaxed);
}

/* Counts this worker as parked; the conductor may be waiting for that. */
static void count_in(hz_worker *w)
{
    hz_turn_page *page = w->run->page;
    publish_usage(w);
    hz_scatter_enter(&w->run->scatter, w->index);
    atomic_store(&w->slot->parked, 1);
    atomic_fetch_add(&page->parked, 1);
    if (hz_turn_all_parked(page)) {
        look_at_live_bytes(w->run);
        hz_futex_wake(&page->parked);
    }
}

/* Waits for a turn; false when there will be none. */
static bool park(hz_worker *w)
{
    hz_turn_page *page = w->run->page;
    uint32_t turn;
    atomic_fetch_add(&page->halted, 1);
    count_in(w);
    while ((turn = atomic_load(&page->turn)) == HZ_TURN_PARK)
        hz_futex_wait(&page->turn, HZ_TURN_PARK, -1);
    hz_turn_pass(page);
    atomic_fetch_sub(&page->halted, 1);
    hz_scatter_leave(&w->run->scatter);
    atomic_fetch_sub(&page->parked, 1);
    atomic_store(&w->slot->parked, 0);
    return turn != HZ_TURN_QUIT;
}

/*
 * Wakes a worker that sleeps in sleep_until_woken(), if it does. The waker counts it out: so it is
 * not counted as parked any more when the waker itself parks, and no turn ends while it is waking.
 */
void hz_wake(hz_worker *w)
{
    if (atomic_load(&w->asleep) == 0 || atomic_exchange(&w->asleep, 0) == 0) return;
    atomic_fetch_sub(&w->run->page->parked, 1);
    hz_futex_wake(&w->asleep);
}

/* At the end: whatever sleeps shall see it. */
static void wake_all(hz_run *run)
{
    if (run->workload->arm == NULL) return;
    for (unsigned i = 0; i < run->threads; i++) hz_wake(&run->workers[i]);
}

/*
 * Sleeps until another worker or the end wakes this one; it counts as parked meanwhile, so that a
 * turn can end. Either it sees here that it can go on, or the other one sees that it is asleep.
 */
static void sleep_until_woken(hz_worker *w)
{
    hz_turn_page *page = w->run->page;
    count_in(w);
    atomic_store(&w->asleep, 1);
    if (atomic_load(&page->turn) == HZ_TURN_QUIT || !w->run->workload->arm(w))
        if (atomic_exchange(&w->asleep, 0) == 1) atomic_fetch_sub(&page->parked, 1);
    while (atomic_load(&w->asleep) != 0) hz_futex_wait(&w->asleep, 1, -1);
    hz_scatter_leave(&w->run->scatter);
    atomic_store(&w->slot->parked, 0);
}

/*
 * Waiting for another worker: look again at once a few times if that worker can be running at the
 * same time, then yield, then sleep: until it is woken, or for a random time, so that workers that
 * wait for each other do not fall into a rhythm.
 */
static void wait_a_moment(hz_worker *w)
{
    const bool crowded = w->run->threads > w->run->cpus;
    const bool is_woken = w->run->workload->arm != NULL && w->quota != 0;
    const uint64_t spins = crowded ? 0 : SPINS;
    const uint64_t yields = is_woken && crowded ? YIELDS_IN_A_CROWD : YIELDS;
    w->waits++;
    if (w->waits <= spins) return;
    if (w->waits <= spins + yields) {
        (void)sched_yield();
    } else if (is_woken) {
        sleep_until_woken(w);
    } else {
        const uint32_t nap = NAP_NS + hz_scale(hz_low(hz_random(&w->wait_rng)), NAP_NS);
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = (long)nap}, NULL);
    }
}

/* A new thread goes on with this worker. The thread that worked before this one has long ended and
 * is joined now. */
static void hand_over(hz_worker *w)
{
    w->hand_over = false;
    w->births++;
    publish_usage(w);
    w->past_involuntary = atomic_load_explicit(&w->slot->involuntary, memory_order_relaxed);
    w->past_minor_faults = atomic_load_explicit(&w->slot->minor_faults, memory_order_relaxed);
    if (w->has_previous) (void)pthread_join(w->previous, NULL);
    w->previous = pthread_self();
    w->has_previous = true;
    start_thread(w);
}

/* Serves the others; true when the worker owes them nothing. Only fixed work is still counted. */
static bool drain_worker(hz_worker *w)
{
    size_t done = 0;
    if (w->run->workload->drain == NULL) return true;
    const bool settled = w->run->workload->drain(w, &done);
    if (w->run->options->ops != 0) w->ops += done;
    publish_work(w);
    return settled;
}

/*
 * The worker's last acts: hand over what it owes, serve the others until all have done so, then
 * free everything; but a conductor does not wait for that. No worker is done while a block of its
 * own is on its way to a mailbox, so the last look into one finds all that will ever come.
 */
static void finish_worker(hz_worker *w)
{
    hz_run *run = w->run;
    w->finished_ns = hz_clock_ns();
    w->thread = pthread_self();
    for (w->waits = 0; !drain_worker(w); wait_a_moment(w)) continue;
    publish_work(w);
    atomic_fetch_add(&run->done, 1);
    hz_futex_wake(&run->done);
    for (w->waits = 0; atomic_load(&run->done) < run->threads; wait_a_moment(w))
        (void)drain_worker(w);
    (void)drain_worker(w);
    publish_usage(w);
    (void)pthread_barrier_wait(&run->stopped);
    if (run->options->turns_fd >= 0) return;
    run->workload->end(w);
    publish_work(w);
}

static void begin_work(hz_worker *w)
{
    if (w->run->options->rests != 0) hz_harness_note(&w->mapped);
    w->run->workload->begin(w);
    hz_harness_note(NULL);
    publish_work(w);
}

/* Rests with all others when everything is freed; true: there is another round, which has begun. */
static bool rest(hz_worker *w)
{
    hz_run *run = w->run;
    if (run->options->rests == 0) return false;
    hz_harness_give_back(&w->mapped);
    (void)pthread_barrier_wait(&run->stopped);
    (void)pthread_barrier_wait(&run->stopped);
    if (run->rests_left == 0) return false;
    begin_work(w);
    return true;
}

/* Whether the worker obeys the turn word here and now: in the middle of a round it may not park. */
static bool may_park(const hz_worker *w)
{
    const hz_turn_page *page = w->run->page;
    return page->is_whole == 0 || atomic_load(&page->turn) == HZ_TURN_QUIT ||
           w->run->workload->between(w);
}

/* Steps until the turn word, the quota or a hand-over ends it; true: the worker has finished. */
static bool work(hz_worker *w)
{
    hz_turn_page *page = w->run->page;
    const hz_workload *workload = w->run->workload;
    for (;;) {
        if (HZ_UNLIKELY(atomic_load_explicit(&page->turn, memory_order_relaxed) != HZ_TURN_RUN) &&
            may_park(w) && !park(w)) {
            wake_all(w->run);
            w->quota = 0;
            return true;
        }
        if (HZ_UNLIKELY(w->quota == 0)) return true;
        const size_t done =
            workload->step(w, w->quota < workload->batch ? (size_t)w->quota : workload->batch);
        w->ops += done;
        w->quota -= done;
        publish_work(w);
        if (HZ_UNLIKELY(done == 0))
            wait_a_moment(w);
        else
            w->waits = 0;
        if (HZ_UNLIKELY(w->hand_over)) return false;
    }
}

static void *worker_main(void *argument)
{
    hz_worker *w = argument;
    if (!w->begun) {
        w->begun = true;
        begin_work(w);
    }
    while (work(w)) {
        finish_worker(w);
        if (!rest(w)) return NULL;
    }
    hand_over(w);
    return NULL;
}

/* --- the main thread ------------------------------------------------------------------------- */

/* The page of the conductor behind `fd`. */
static hz_turn_page *map_conductor(int fd, const hz_workload *workload)
{
    hz_turn_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        hz_refuse("--turns %d: not a conductor's memory: %s", fd, strerror(errno));
    if (memcmp(page->magic, HZ_TURNS_MAGIC, sizeof page->magic) != 0 ||
        page->version != HZ_TURNS_VERSION)
        hz_refuse("--turns %d: not a conductor's memory of version %d", fd, HZ_TURNS_VERSION);
    if (page->is_whole != 0 && workload->between == NULL)
        hz_refuse("--turns %d: %s has no rounds, with which a turn could end", fd, workload->name);
    return page;
}

static void init_worker(hz_run *run, unsigned index)
{
    hz_worker *w = &run->workers[index];
    const hz_options *options = run->options;
    *w = (hz_worker){
        .rng = hz_random_start(options->seed, index),
        .wait_rng = hz_random_start((uint64_t)hz_clock_ns(), index),
        .run = run,
        .touch = options->touch,
        .index = index,
        .slot = &run->page->slots[index],
    };
    if (options->ops != 0 || options->latency)
        w->instruments = hz_instruments_new(options->latency);
}

/* An even share, unless the workload has its own rule. */
static uint64_t quota_of(const hz_run *run, unsigned index)
{
    const uint64_t ops = run->options->ops;
    if (run->workload->quota != NULL) return run->workload->quota(run, index);
    return ops / run->threads + (index < ops % run->threads);
}

static void give_quotas(hz_run *run)
{
    for (unsigned i = 0; i < run->threads; i++)
        run->workers[i].quota = run->options->ops == 0 ? UINT64_MAX : quota_of(run, i);
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
        .workers = hz_harness_alloc(options->threads * sizeof(hz_worker)),
        .remote_target = -1,
    };
    hz_scatter_init(&run->scatter, run->threads, hz_random_start((uint64_t)hz_clock_ns(), 0));
    (void)pthread_barrier_init(&run->stopped, NULL, run->threads + 1);
    for (unsigned i = 0; i < run->threads; i++) init_worker(run, i);
    if (run->workload->prepare != NULL) run->workload->prepare(run);
    run->rests_left = options->rests;
    give_quotas(run);
}

/* Lets the workers work until `end_ns`, or until all are done. */
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

/* A counted window of fixed length after a warm-up. */
static void run_for_time(hz_run *run, reading *first, reading *last)
{
    hz_turn_give(run->page, HZ_TURN_RUN);
    watch_until(run, hz_clock_ns() + ns_of(run->options->warmup));
    hz_allocator_window(true);
    *first = read_counters(run);
    watch_until(run, first->ns + ns_of(run->options->seconds));
    *last = read_counters(run);
    hz_allocator_window(false);
    atomic_store(&run->page->worked_ns, (uint64_t)(last->ns - atomic_load(&run->page->began_ns)));
    hz_turn_give(run->page, HZ_TURN_QUIT);
    watch_until(run, INT64_MAX);
    (void)pthread_barrier_wait(&run->stopped);
}

/* Fixed work: the window ends when the last worker has done its quota; what was on its way to
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
        if (run->workers[i].finished_ns > last->ns) last->ns = run->workers[i].finished_ns;
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

static uint64_t join_workers(hz_run *run)
{
    uint64_t births = 0;
    for (unsigned i = 0; i < run->threads; i++) {
        hz_worker *w = &run->workers[i];
        if (w->has_previous) (void)pthread_join(w->previous, NULL);
        (void)pthread_join(w->thread, NULL);
        births += w->births;
    }
    return births;
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

/* The workers have freed everything and wait: rests, and prepares another round if there is one. */
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
    for (unsigned i = 0; i < run->threads; i++) start_thread(&run->workers[i]);
    do {
        run_once(run, result);
        if (run->options->rests != 0) rest_all(run);
    } while (run->rests_left > 0);
    result->births = join_workers(run);
    result->live_peak_kb = atomic_load(&run->live_peak_bytes) / 1024;
}
