/*
 * hz-turns: measures several configurations of one program side by side, by turns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "conductor.h"

static const char help[] =
    "usage: hz-turns [options] --arm KEY [--env NAME=VALUE | --unset NAME]... [--arm ...]... -- "
    "PROGRAM ARGUMENTS...\n\n"
    "Starts PROGRAM once for every arm, gives the processes short turns in random order and writes "
    "one JSON object\n"
    "a line. PROGRAM is hz-bench or obeys the same protocol; \"--turns 3\" is appended to its "
    "arguments.\n\n"
    "  --turn-ms MS        length of a turn (default 20)\n"
    "  --skip-ms MS        its beginning, which is not counted (default 2)\n"
    "  --warmup-ms MS      uncounted work of each arm before the first round (default 300)\n"
    "  --rounds N          turns of each arm (default 8)\n"
    "  --seed K            of the order of the arms (default 1)\n"
    "  --rss-limit-mb M    an arm that grows beyond is killed (default: no limit)\n"
    "  --stall-ms MS       an arm whose threads do not park within is killed (default 3000)\n"
    "  --ask               after the rounds, write how many there were and read one line: \"more N\" or "
    "\"quit\"\n"
    "  --gap-check         also report the CPU time that each arm used while it was parked\n"
    "  --env, --unset      before the first --arm: for all of them\n";

enum { MS_MAX = 3600 * 1000 };

typedef void setter(hz_conductor *conductor, const char *name, const char *text);

static int64_t parse_ms(const char *name, const char *text)
{
    return (int64_t)(1e6 * hz_parse_decimal(name, text, 0, MS_MAX));
}

static void set_turn(hz_conductor *c, const char *name, const char *text)
{
    c->turn_ns = parse_ms(name, text);
}

static void set_skip(hz_conductor *c, const char *name, const char *text)
{
    c->skip_ns = parse_ms(name, text);
}

static void set_warmup(hz_conductor *c, const char *name, const char *text)
{
    c->warmup_ns = parse_ms(name, text);
}

static void set_stall(hz_conductor *c, const char *name, const char *text)
{
    c->stall_ns = parse_ms(name, text);
}

static void set_rounds(hz_conductor *c, const char *name, const char *text)
{
    c->rounds = (unsigned)hz_parse_whole(name, text, 0, 1000000);
}

static void set_seed(hz_conductor *c, const char *name, const char *text)
{
    c->seed = hz_parse_whole(name, text, 0, UINT64_MAX);
}

static void set_limit(hz_conductor *c, const char *name, const char *text)
{
    c->rss_limit_kb = 1024 * (int64_t)hz_parse_whole(name, text, 1, 1 << 30);
}

static void add_arm(hz_conductor *c, const char *name, const char *text)
{
    if (c->arm_count == HZ_ARMS_MAX)
        hz_refuse("--%s %s: more than %d arms", name, text, HZ_ARMS_MAX);
    c->arms[c->arm_count++].key = text;
}

static void add_change(hz_conductor *c, const char *name, const char *text)
{
    hz_changes_add(c->arm_count == 0 ? &c->common : &c->arms[c->arm_count - 1].changes, name, text);
}

static const struct {
    const char *name;
    setter *set;
} options[] = {
    {"turn-ms", set_turn},   {"skip-ms", set_skip},       {"warmup-ms", set_warmup},
    {"stall-ms", set_stall}, {"rounds", set_rounds},      {"seed", set_seed},
    {"arm", add_arm},        {"rss-limit-mb", set_limit}, {"env", add_change},
    {"unset", add_change},
};

static void set_option(hz_conductor *conductor, const char *word, const char *text)
{
    const char *name = word + 2;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strncmp(word, "--", 2) != 0 || strcmp(name, options[i].name) != 0) continue;
        if (text == NULL) hz_refuse("%s: its value is missing", word);
        options[i].set(conductor, name, text);
        return;
    }
    hz_refuse("%s: not an option: see hz-turns --help", word);
}

/* Whether `word` is an option without a value; then it is set. */
static bool set_flag(hz_conductor *conductor, const char *word)
{
    const bool is_ask = strcmp(word, "--ask") == 0;
    const bool is_gap_check = strcmp(word, "--gap-check") == 0;
    conductor->ask |= is_ask;
    conductor->gap_check |= is_gap_check;
    return is_ask || is_gap_check;
}

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
    int at = 1;
    while (at < argc && strcmp(argv[at], "--") != 0) {
        if (strcmp(argv[at], "--help") == 0) {
            (void)fputs(help, stdout);
            exit(HZ_STATUS_OK);
        }
        if (set_flag(conductor, argv[at])) {
            at++;
            continue;
        }
        set_option(conductor, argv[at], at + 1 < argc ? argv[at + 1] : NULL);
        at += 2;
    }
    if (at + 1 >= argc) hz_refuse("the program is missing: it stands after --");
    if (conductor->arm_count == 0) hz_refuse("--arm is missing: there is nothing to measure");
    if (conductor->skip_ns >= conductor->turn_ns)
        hz_refuse("--skip-ms: must be shorter than --turn-ms");
    conductor->program = with_turns(argv + at + 1, argc - at - 1);
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
