/*
 * hz-turns: measures several configurations of one program side by side, by turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "conductor.h"

static const char about[] =
    "usage: hz-turns [options] --arm KEY [--env NAME=VALUE]... [--arm ...]... -- PROGRAM ...\n\n"
    "Starts PROGRAM once for every arm, gives the processes short turns in random order and "
    "writes\n"
    "one JSON object a line. PROGRAM is hz-bench or obeys the same protocol; \"--turns 3\" is\n"
    "appended to its arguments.\n";

enum { MS_MAX = 3600 * 1000 };

static int64_t parse_ms(const char *name, const char *text)
{
    return (int64_t)(1e6 * hz_parse_decimal(name, text, 0, MS_MAX));
}

static void set_turn(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->turn_ns = parse_ms(name, text);
}

static void set_skip(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->skip_ns = parse_ms(name, text);
}

static void set_warmup(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->warmup_ns = parse_ms(name, text);
}

static void set_stall(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->stall_ns = parse_ms(name, text);
}

static void set_rounds(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->rounds = (unsigned)hz_parse_whole(name, text, 0, 1000000);
}

static void set_seed(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->seed = hz_parse_whole(name, text, 0, UINT64_MAX);
}

static void set_limit(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    c->rss_limit_kb = 1024 * (int64_t)hz_parse_whole(name, text, 1, 1 << 30);
}

static void add_arm(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    if (c->arm_count == HZ_ARMS_MAX)
        hz_refuse("--%s %s: more than %d arms", name, text, HZ_ARMS_MAX);
    c->arms[c->arm_count++].key = text;
}

static void add_change(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    hz_changes_add(c->arm_count == 0 ? &c->common : &c->arms[c->arm_count - 1].changes, name, text);
}

static void set_program(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    if (c->arm_count == 0) hz_refuse("--%s %s: stands before the first --arm", name, text);
    c->arms[c->arm_count - 1].program = text;
}

static void set_gap_check(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    (void)name, (void)text;
    c->gap_check = true;
}

static void set_whole(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    (void)name, (void)text;
    c->is_whole = true;
}

static void set_ask(void *target, const char *name, const char *text)
{
    hz_conductor *c = target;
    (void)name, (void)text;
    c->ask = true;
}

static const hz_option options[] = {
    {"arm", "KEY", add_arm, "begins an arm, called KEY in the events"},
    {"env", "NAME=VALUE", add_change,
     "sets a variable for the arm; before the first --arm: for all of them"},
    {"unset", "NAME", add_change, "unsets a variable likewise"},
    {"program", "PATH", set_program, "what the arm runs instead of PROGRAM, with its arguments"},
    {"turn-ms", "MS", set_turn, "length of a turn (default 20)"},
    {"skip-ms", "MS", set_skip, "its beginning, which is not counted (default 2)"},
    {"warmup-ms", "MS", set_warmup,
     "uncounted work of each arm before the first round (default 300)"},
    {"rounds", "N", set_rounds, "turns of each arm (default 8)"},
    {"seed", "K", set_seed, "of the order of the arms (default 1)"},
    {"rss-limit-mb", "M", set_limit, "an arm that grows beyond is killed (default: no limit)"},
    {"stall-ms", "MS", set_stall,
     "an arm whose threads do not park within is killed (default 3000)"},
    {"ask", NULL, set_ask,
     "after the rounds, write how many there were and read: \"more N\" or \"quit\""},
    {"whole", NULL, set_whole,
     "a turn goes on, after turn-ms, to the end of a round of the workload (a trace has some)"},
    {"gap-check", NULL, set_gap_check,
     "also report the CPU time that each arm used while it was parked"},
};

/* The program's words with "--turns 3" after them. */
static char **with_turns(char **words, int count)
{
    static char option[] = "--turns";
    static char fd[] = {'0' + HZ_GIVEN_FD, '\0'};
    char **argv = calloc((size_t)count + 3, sizeof *argv);
    if (argv == NULL) hz_fail("no memory for %d arguments", count);
    memcpy(argv, words, (size_t)count * sizeof *argv);
    argv[count] = option;
    argv[count + 1] = fd;
    return argv;
}

static void parse(hz_conductor *conductor, int argc, char **argv)
{
    const int at = hz_parse_launcher(options, sizeof options / sizeof options[0], about, conductor,
                                     argc, argv);
    if (conductor->arm_count == 0) hz_refuse("--arm is missing: there is nothing to measure");
    if (conductor->skip_ns >= conductor->turn_ns)
        hz_refuse("--skip-ms: must be shorter than --turn-ms");
    conductor->program = with_turns(argv + at, argc - at);
}

int main(int argc, char **argv)
{
    static hz_arm arms[HZ_ARMS_MAX];
    hz_conductor conductor = {
        .turn_ns = 20 * 1000000,
        .skip_ns = 2 * 1000000,
        .warmup_ns = 300 * 1000000,
        .stall_ns = INT64_C(3000) * 1000000,
        .seed = 1,
        .rounds = 8,
        .arms = arms,
    };
    parse(&conductor, argc, argv);
    return hz_conduct(&conductor);
}
