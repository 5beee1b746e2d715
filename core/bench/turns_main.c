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

#define HZ_TARGET hz_conductor
static const hz_option options[] = {
    {"arm", "KEY", "begins an arm, called KEY in the events", HZ_DO(add_arm)},
    {"env", "NAME=VALUE", "sets a variable for the arm; before the first --arm: for all of them",
     HZ_DO(add_change)},
    {"unset", "NAME", "unsets a variable likewise", HZ_DO(add_change)},
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
    {"gap-check", NULL, "also report the CPU time that each arm used while it was parked",
     HZ_STORE(FLAG, gap_check)},
};

static const hz_command command = {about, options, sizeof options / sizeof options[0], NULL};

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
    const int at = hz_parse_launcher(&command, conductor, argc, argv);
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
        .ready_ns = INT64_C(10000) * 1000000,
        .stall_ns = INT64_C(3000) * 1000000,
        .seed = 1,
        .rounds = 8,
        .arms = arms,
    };
    parse(&conductor, argc, argv);
    return hz_conduct(&conductor);
}
