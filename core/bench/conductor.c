/*
 * The conductor: see conductor.h. It sleeps through the turns and works between them.
 */
#include "conductor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "arguments.h"
#include "procfs.h"
#include "rng.h"

enum {
    NS_PER_S = 1000000000,
    QUIT_S = 10,              /* patience with an arm that was told to quit */
    HURRY_NS = 500000000,     /* the same when a signal asks for the end */
    LOOK_NS = 10000000,       /* between two looks at the pipes while threads park */
    READING_NS = 20000,       /* a reading of the counters that took longer is taken again */
    SETTLE_NS = 500000,       /* in which a released arm's threads go back to waiting */
    LINE_MAX_BYTES = 64,      /* an answer on stdin */
    READINGS_MAX = 8,         /* so often */
    STATUS_INTERRUPTED = 143, /* 128 + SIGTERM */
};

/* --- starting -------------------------------------------------------------------------------- */

/* The turn page of an arm, and the descriptor that the arm inherits. */
static hz_turn_page *make_page(const hz_conductor *conductor, int *fd)
{
    *fd = memfd_create("hz-turns", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, sizeof(hz_turn_page)) != 0)
        hz_fail("cannot make a turn page: %s", strerror(errno));
    hz_turn_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (page == MAP_FAILED) hz_fail("cannot map a turn page: %s", strerror(errno));
    memcpy(page->magic, HZ_TURNS_MAGIC, sizeof page->magic);
    page->version = HZ_TURNS_VERSION;
    page->is_whole = conductor->is_whole;
    return page;
}

/* What an arm executes: the common words, the first one replaced where it has its own program. */
static char **arm_words(const hz_conductor *conductor, const hz_arm *arm)
{
    if (arm->program == NULL) return conductor->program;
    size_t count = 0;
    while (conductor->program[count] != NULL) count++;
    char **words = calloc(count + 1, sizeof *words);
    if (words == NULL) hz_fail("no memory for %zu arguments", count);
    memcpy(words, conductor->program, count * sizeof *words);
    words[0] = strdup(arm->program);
    return words;
}

static void start_arm(const hz_conductor *conductor, hz_arm *arm)
{
    int fd;
    arm->page = make_page(conductor, &fd);
    hz_child_start(&arm->child,
                   &(hz_spawn){
                       .argv = arm_words(conductor, arm),
                       .environment = hz_environment_make(&conductor->common, &arm->changes),
                       .given_fd = fd,
                       .gate_fd = -1,
                       .captured = true,
                   });
    (void)close(fd);
    hz_event_start(arm);
}

/* --- parking --------------------------------------------------------------------------------- */

/* Waits until all threads of an arm are parked; kills it as hung when the deadline passes. */
static void wait_until_parked(hz_conductor *conductor, hz_arm *arm, int64_t deadline_ns)
{
    while (!arm->gone && !conductor->interrupted && !hz_turn_all_parked(arm->page)) {
        const uint32_t seen = atomic_load(&arm->page->parked);
        if (hz_clock_ns() >= deadline_ns) {
            hz_arm_kill(arm, "hang");
            return;
        }
        if (!hz_turn_all_parked(arm->page)) hz_futex_wait(&arm->page->parked, seen, LOOK_NS);
        (void)hz_watch(conductor, 0);
        hz_arm_check_memory(conductor, arm);
    }
}

/*
 * Stops a parked arm that has threads beside those that obey and main, such as the background
 * thread of an allocator: it would go on in the turns of others, at their cost.
 */
static void hold(hz_arm *arm)
{
    const int64_t obeying = atomic_load(&arm->page->nthreads);
    if (arm->gone || hz_proc_status(arm->child.pid, "\nThreads:") <= obeying + 1) return;
    arm->held = kill(arm->child.pid, SIGSTOP) == 0;
}

/* Lets a held arm go on; false when it was not held, or has ended meanwhile. */
static bool let_go(hz_arm *arm)
{
    const bool stopped = arm->held && !arm->gone;
    arm->held = false;
    return stopped && kill(arm->child.pid, SIGCONT) == 0;
}

/* The same before a turn: its parked threads wake, look at the turn and sleep again. */
static void release_arm(hz_conductor *conductor, hz_arm *arm)
{
    if (let_go(arm)) (void)hz_watch(conductor, hz_clock_ns() + SETTLE_NS);
}

/* --- a turn ---------------------------------------------------------------------------------- */

/* A moment and the operations completed until then. */
typedef struct reading {
    int64_t ns;
    uint64_t ops;
} reading;

/* Reads the counters between two looks at the clock, again if something came between them. */
static reading read_ops(hz_turn_page *page)
{
    reading best = {0, 0};
    int64_t shortest = INT64_MAX;
    for (int i = 0; i < READINGS_MAX && shortest > READING_NS; i++) {
        const int64_t before = hz_clock_ns();
        const uint64_t ops = hz_turn_ops(page);
        const int64_t took = hz_clock_ns() - before;
        if (took < shortest) {
            shortest = took;
            best = (reading){before + took / 2, ops};
        }
    }
    return best;
}

/* What grows with time, of an arm and of the machine. */
typedef struct totals {
    int64_t cpu_ns;
    uint64_t involuntary;
    uint64_t minor_faults;
    int64_t steal_ticks;
    int64_t psi_us;
} totals;

static totals read_totals(const hz_arm *arm)
{
    totals sum = {
        .cpu_ns = hz_proc_cpu_ns(arm->child.pid),
        .steal_ticks = hz_proc_steal_ticks(),
        .psi_us = hz_proc_pressure_us(),
    };
    const uint32_t nthreads = atomic_load(&arm->page->nthreads);
    for (uint32_t i = 0; i < nthreads; i++) {
        const hz_turn_slot *slot = &arm->page->slots[i];
        sum.involuntary += atomic_load_explicit(&slot->involuntary, memory_order_relaxed);
        sum.minor_faults += atomic_load_explicit(&slot->minor_faults, memory_order_relaxed);
    }
    return sum;
}

/* Waits until an arm has heard of its turn: one of whole rounds has one at least. */
static void wait_until_begun(hz_conductor *conductor, hz_arm *arm)
{
    const int64_t deadline_ns = hz_clock_ns() + conductor->stall_ns;
    while (!arm->gone && !conductor->interrupted && atomic_load(&arm->page->halted) != 0)
        if (!hz_watch(conductor, hz_clock_ns() + SETTLE_NS) || hz_clock_ns() > deadline_ns) return;
}

/* Parks an arm and returns how its counters stood when its turn ended. */
static reading end_turn(hz_conductor *conductor, hz_arm *arm, int64_t start_ns)
{
    reading last = read_ops(arm->page);
    if (conductor->is_whole) {
        wait_until_begun(conductor, arm);
        atomic_store(&arm->page->turn, HZ_TURN_PARK);
        wait_until_parked(conductor, arm, hz_clock_ns() + conductor->stall_ns);
        last = read_ops(arm->page);
    }
    atomic_fetch_add(&arm->page->worked_ns, (uint64_t)(last.ns - start_ns));
    hz_turn_give(arm->page, HZ_TURN_PARK);
    if (!conductor->is_whole)
        wait_until_parked(conductor, arm, hz_clock_ns() + conductor->stall_ns);
    return last;
}

/*
 * Lets an arm work for turn_ns and fills `turn`; false when the arm did not live to its end or the
 * whole was interrupted. The counted part ends before the threads are told to park, or with the
 * round that they are in.
 */
static bool give_arm_turn(hz_conductor *conductor, hz_arm *arm, int64_t skip_ns, int64_t turn_ns,
                          hz_turn_event *turn)
{
    release_arm(conductor, arm);
    const totals before = read_totals(arm);
    reading first = read_ops(arm->page);
    const int64_t start_ns = hz_clock_ns();
    hz_turn_give(arm->page, HZ_TURN_RUN);
    const bool skipped = hz_watch(conductor, start_ns + skip_ns);
    if (!conductor->is_whole) first = read_ops(arm->page);
    const bool whole = skipped && hz_watch(conductor, start_ns + turn_ns);
    const reading last = end_turn(conductor, arm, start_ns);
    hz_arm_check_memory(conductor, arm);
    hold(arm);
    if (!whole || arm->gone || conductor->interrupted) return false;
    const totals after = read_totals(arm);
    turn->start_ns = first.ns;
    turn->counted_ns = last.ns - first.ns;
    turn->ops = last.ops - first.ops;
    turn->cpu_ns = after.cpu_ns - before.cpu_ns;
    turn->involuntary = after.involuntary - before.involuntary;
    turn->minor_faults = after.minor_faults - before.minor_faults;
    turn->steal_ticks = after.steal_ticks - before.steal_ticks;
    turn->psi_us = after.psi_us - before.psi_us;
    turn->rss_kb = hz_arm_rss_kb(arm);
    turn->live_kb = hz_turn_live_bytes(arm->page) / 1024;
    turn->gap_cpu_ns = before.cpu_ns - arm->parked_cpu_ns;
    arm->parked_cpu_ns = after.cpu_ns;
    return true;
}

/* --- the whole ------------------------------------------------------------------------------- */

static void warm_up(hz_conductor *conductor, hz_arm *arm)
{
    hz_turn_event turn = {0};
    if (!give_arm_turn(conductor, arm, 0, conductor->warmup_ns, &turn)) return;
    conductor->warmed_ns += turn.counted_ns;
    hz_event_warm(arm, turn.counted_ns);
}

static void play_round(hz_conductor *conductor, unsigned round)
{
    size_t order[HZ_ARMS_MAX];
    hz_shuffle(&conductor->rng, order, conductor->arm_count);
    for (size_t i = 0; i < conductor->arm_count && !conductor->interrupted; i++) {
        hz_arm *arm = &conductor->arms[order[i]];
        hz_turn_event turn = {.round = round, .position = i};
        if (arm->gone ||
            !give_arm_turn(conductor, arm, conductor->skip_ns, conductor->turn_ns, &turn))
            continue;
        conductor->counted_ns += turn.counted_ns;
        hz_event_turn(arm, &turn, conductor->gap_check);
    }
}

/* Tells everything to quit, and kills what does not within its time. */
static void quit(hz_conductor *conductor)
{
    const bool hurry = conductor->interrupted;
    const int64_t patience = hurry ? HURRY_NS : (int64_t)QUIT_S * NS_PER_S;
    const int64_t deadline = hz_clock_ns() + patience;
    for (size_t i = 0; i < conductor->arm_count; i++) {
        hz_arm *arm = &conductor->arms[i];
        arm->told_to_quit = true;
        hz_turn_give(arm->page, HZ_TURN_QUIT);
        (void)let_go(arm);
    }
    while (hz_arms_alive(conductor) > 0 && hz_clock_ns() < deadline)
        (void)hz_watch(conductor, deadline);
    for (size_t i = 0; i < conductor->arm_count; i++)
        hz_arm_kill(&conductor->arms[i], hurry ? "failed" : "hang");
}

/* Says how many rounds were played and reads how many more are wanted; all arms stay parked. */
static unsigned ask_for_more(const hz_conductor *conductor, unsigned done)
{
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                           {.fd = conductor->signal_fd, .events = POLLIN}};
    char line[LINE_MAX_BYTES];
    unsigned more;
    hz_event_rounds(done);
    while (poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    if (fds[0].revents == 0 || fgets(line, sizeof line, stdin) == NULL) return 0;
    return sscanf(line, "more %u", &more) == 1 ? more : 0;
}

static bool goes_on(const hz_conductor *conductor)
{
    return !conductor->interrupted && hz_arms_alive(conductor) > 0;
}

static void play_rounds(hz_conductor *conductor)
{
    unsigned wanted = conductor->rounds;
    for (unsigned round = 0; round < wanted && goes_on(conductor); round++) {
        play_round(conductor, round);
        if (conductor->ask && round + 1 == wanted && goes_on(conductor))
            wanted += ask_for_more(conductor, wanted);
    }
}

static void play_arms(hz_conductor *conductor)
{
    for (size_t i = 0; i < conductor->arm_count; i++) start_arm(conductor, &conductor->arms[i]);
    const int64_t ready_by = hz_clock_ns() + conductor->ready_ns;
    hz_hurry_self(); /* after the arms were started: they keep the usual priority */
    for (size_t i = 0; i < conductor->arm_count; i++) {
        wait_until_parked(conductor, &conductor->arms[i], ready_by);
        hold(&conductor->arms[i]);
    }
    for (size_t i = 0; i < conductor->arm_count && !conductor->interrupted; i++)
        if (!conductor->arms[i].gone) warm_up(conductor, &conductor->arms[i]);
    play_rounds(conductor);
    quit(conductor);
}

int hz_conduct(hz_conductor *conductor)
{
    const int64_t start_ns = hz_clock_ns();
    conductor->signal_fd = hz_become_keeper();
    (void)prctl(PR_SET_TIMERSLACK, 1); /* our own wake-ups shall be prompt */
    conductor->rng = hz_random_start(conductor->seed, 0);
    play_arms(conductor);
    hz_event_end(conductor, hz_clock_ns() - start_ns);
    hz_kill_descendants();
    return conductor->interrupted ? STATUS_INTERRUPTED : HZ_STATUS_OK;
}
