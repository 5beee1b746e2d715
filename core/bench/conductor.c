/*
 * hz-turns: measures several configurations of one program side by side, by turns. See conductor.h;
 * it sleeps through the turns and works between them.
 */
#include "conductor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "arguments.h"
#include "procfs.h"
#include "rng.h"

enum {
    MS_MAX = 3600 * 1000,
    NS_PER_MS = 1000000,
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
    page->is_whole = conductor->is_whole;
    return page;
}

/* What an arm executes: the common words, or its own program with them, and "--turns 3". */
static const char *const *arm_words(const hz_conductor *conductor, const hz_arm *arm)
{
    static const char fd[] = {'0' + HZ_GIVEN_FD, '\0'};
    size_t count = 0;
    while (conductor->program[count] != NULL) count++;
    const char **words = calloc(count + 3, sizeof *words);
    if (words == NULL) hz_fail("no memory for %zu arguments", count);
    memcpy(words, conductor->program, count * sizeof *words);
    if (arm->program != NULL) words[0] = arm->program;
    words[count] = "--turns";
    words[count + 1] = fd;
    return words;
}

static void start_arm(const hz_conductor *conductor, hz_arm *arm)
{
    int fd;
    arm->page = make_page(conductor, &fd);
    hz_child_start(&arm->child, &(hz_spawn){
                                    .argv = arm_words(conductor, arm),
                                    .changes = arm->changes,
                                    .given_fd = fd,
                                    .gate_fd = -1,
                                    .captured = true,
                                });
    (void)close(fd);
    hz_json json = hz_arm_event("start", arm);
    hz_json_int(&json, "pid", arm->child.pid);
    hz_json_end_line(&json);
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
enum { CPU_NS, INVOLUNTARY, STEAL_TICKS, PSI_US, TOTALS };

static const char *const total_names[TOTALS] = {
    [CPU_NS] = "cpu_ns",           /* CPU time of the whole turn, as are the rest */
    [INVOLUNTARY] = "involuntary", /* context switches */
    [STEAL_TICKS] = "steal_ticks", /* taken by a hypervisor, machine-wide */
    [PSI_US] = "psi_us",           /* in which some task waited for a CPU, machine-wide */
};

static void read_totals(const hz_arm *arm, int64_t totals[TOTALS])
{
    const uint32_t nthreads = atomic_load(&arm->page->nthreads);
    totals[CPU_NS] = hz_proc_cpu_ns(arm->child.pid);
    totals[STEAL_TICKS] = hz_proc_steal_ticks();
    totals[PSI_US] = hz_proc_pressure_us();
    totals[INVOLUNTARY] = 0;
    for (uint32_t i = 0; i < nthreads; i++)
        totals[INVOLUNTARY] += (int64_t)atomic_load(&arm->page->slots[i].involuntary);
}

/* A turn that an arm had. */
typedef struct turn {
    int64_t start_ns;       /* of the counted part */
    int64_t counted_ns;     /* its length */
    uint64_t ops;           /* completed in it */
    int64_t passed[TOTALS]; /* by how much the totals have grown */
} turn;

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
 * Lets an arm work for `turn_ns` and fills `had`; false when the arm did not live to its end or the
 * whole was interrupted. The counted part ends before the threads are told to park, or with the
 * round that they are in.
 */
static bool give_arm_turn(hz_conductor *conductor, hz_arm *arm, int64_t skip_ns, int64_t turn_ns,
                          turn *had)
{
    int64_t before[TOTALS], after[TOTALS];
    release_arm(conductor, arm);
    read_totals(arm, before);
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
    read_totals(arm, after);
    had->start_ns = first.ns;
    had->counted_ns = last.ns - first.ns;
    had->ops = last.ops - first.ops;
    for (size_t i = 0; i < TOTALS; i++) had->passed[i] = after[i] - before[i];
    return true;
}

static void tell_turn(const hz_arm *arm, const turn *had, unsigned round, size_t position)
{
    hz_json json = hz_arm_event("turn", arm);
    hz_json_int(&json, "round", round);
    hz_json_int(&json, "position", (int64_t)position);
    hz_json_int(&json, "start_ns", had->start_ns);
    hz_json_int(&json, "counted_ns", had->counted_ns);
    hz_json_int(&json, "ops", (int64_t)had->ops);
    for (size_t i = 0; i < TOTALS; i++) hz_json_int(&json, total_names[i], had->passed[i]);
    hz_json_int(&json, "rss_kb", hz_arm_rss_kb(arm));
    hz_json_end_line(&json);
}

/* --- the whole ------------------------------------------------------------------------------- */

static void warm_up(hz_conductor *conductor, hz_arm *arm)
{
    turn had;
    if (!give_arm_turn(conductor, arm, 0, conductor->warmup_ns, &had)) return;
    hz_json json = hz_arm_event("warm", arm);
    hz_json_int(&json, "ns", had.counted_ns);
    hz_json_end_line(&json);
}

static void play_round(hz_conductor *conductor, unsigned round)
{
    size_t order[HZ_ARMS_MAX];
    hz_shuffle(&conductor->rng, order, conductor->arm_count);
    for (size_t i = 0; i < conductor->arm_count && !conductor->interrupted; i++) {
        hz_arm *arm = &conductor->arms[order[i]];
        turn had;
        if (arm->gone ||
            !give_arm_turn(conductor, arm, conductor->skip_ns, conductor->turn_ns, &had))
            continue;
        tell_turn(arm, &had, round, i);
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
    hz_json json = hz_arm_event("rounds", NULL);
    hz_json_int(&json, "done", done);
    hz_json_end_line(&json);
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

/* --- the command line ------------------------------------------------------------------------ */

static const char about[] =
    "usage: hz-turns [options] --arm KEY [--env NAME=VALUE]... [--arm ...]... -- PROGRAM ...\n\n"
    "Starts PROGRAM once for every arm, gives the processes short turns in random order and "
    "writes\n"
    "one JSON object a line. PROGRAM is hz-bench or obeys the same protocol; \"--turns 3\" is\n"
    "appended to its arguments.\n";

static void add_arm(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    if (c->arm_count == HZ_ARMS_MAX)
        hz_refuse("--%s %s: more than %d arms", name, text, HZ_ARMS_MAX);
    c->arms[c->arm_count++].key = text;
}

static hz_arm *last_arm(hz_conductor *c, const char *name, const char *text)
{
    if (c->arm_count == 0) hz_refuse("--%s %s: stands before the first --arm", name, text);
    return &c->arms[c->arm_count - 1];
}

static void add_variable(void *target, const char *name, const char *text)
{
    hz_arm *arm = last_arm(target, name, text);
    if (arm->change_count == HZ_CHANGES_MAX)
        hz_refuse("--%s %s: more than %d variables", name, text, HZ_CHANGES_MAX);
    arm->changes[arm->change_count++] = text;
}

static void set_program(void *target, const char *name, const char *text)
{
    last_arm(target, name, text)->program = text;
}

#define HZ_TARGET hz_conductor
static const hz_option options[] = {
    {"arm", "KEY", "begins an arm, called KEY in the events", HZ_DO(add_arm)},
    {"env", "NAME=VALUE", "sets a variable for the arm; NAME alone unsets it", HZ_DO(add_variable)},
    {"program", "PATH", "what the arm runs instead of PROGRAM, with its arguments",
     HZ_DO(set_program)},
    {"turn-ms", "MS", "length of a turn (default 20)", HZ_NUMBER(MS, turn_ns, 0, MS_MAX)},
    {"skip-ms", "MS", "its beginning, which is not counted (default 2)",
     HZ_NUMBER(MS, skip_ns, 0, MS_MAX)},
    {"warmup-ms", "MS", "uncounted work of each arm before the first round (default 300)",
     HZ_NUMBER(MS, warmup_ns, 0, MS_MAX)},
    {"rounds", "N", "turns of each arm (default 8)", HZ_NUMBER(WHOLE, rounds, 0, 1000000)},
    {"seed", "K", "of the order of the arms (default 1)", HZ_NUMBER(LONG, seed, 0, 0x1p64)},
    {"rss-limit-mb", "M", "an arm that grows beyond is killed (default: no limit)",
     HZ_STORE(MB, rss_limit_kb)},
    {"ready-ms", "MS", "an arm that is not ready within is killed (default 10000)",
     HZ_NUMBER(MS, ready_ns, 0, MS_MAX)},
    {"stall-ms", "MS", "an arm whose threads do not park within is killed (default 3000)",
     HZ_NUMBER(MS, stall_ns, 0, MS_MAX)},
    {"ask", NULL, "after the rounds, write how many there were and read: \"more N\" or \"quit\"",
     HZ_STORE(FLAG, ask)},
    {"whole", NULL,
     "a turn goes on, after turn-ms, to the end of a round of the workload (a trace has some)",
     HZ_STORE(FLAG, is_whole)},
};

static const hz_command command = {about, options, sizeof options / sizeof options[0], NULL};

static void parse(hz_conductor *conductor, int argc, char **argv)
{
    const int at = hz_parse_launcher(&command, conductor, argc, argv);
    if (conductor->arm_count == 0) hz_refuse("--arm is missing: there is nothing to measure");
    if (conductor->skip_ns >= conductor->turn_ns)
        hz_refuse("--skip-ms: must be shorter than --turn-ms");
    conductor->program = argv + at;
}

int main(int argc, char **argv)
{
    static hz_arm arms[HZ_ARMS_MAX];
    hz_conductor conductor = {
        .turn_ns = 20 * NS_PER_MS,
        .skip_ns = 2 * NS_PER_MS,
        .warmup_ns = 300 * NS_PER_MS,
        .ready_ns = INT64_C(10000) * NS_PER_MS,
        .stall_ns = INT64_C(3000) * NS_PER_MS,
        .seed = 1,
        .rounds = 8,
        .arms = arms,
    };
    parse(&conductor, argc, argv);
    conductor.signal_fd = hz_become_keeper();
    (void)prctl(PR_SET_TIMERSLACK, 1); /* our own wake-ups shall be prompt */
    conductor.rng = hz_random_start(conductor.seed, 0);
    play_arms(&conductor);
    hz_json json = hz_arm_event("end", NULL);
    hz_json_end_line(&json);
    hz_kill_descendants();
    return conductor.interrupted ? STATUS_INTERRUPTED : HZ_STATUS_OK;
}
