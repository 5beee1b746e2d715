/*
 * The command line: WORKLOAD[@SETTING] or WORKLOAD:FILE, and options, common ones from the table
 * below, the workload's from its own.
 */
#include <stdio.h>

#include "bench.h"

enum { SECONDS_MAX = 86400 };

static const char *const touch_words[] = {"none", "head", "full", NULL};

/* --- texts to values ------------------------------------------------------------------------- */

/* Index of `text` in the NULL-terminated `words`. */
static int64_t parse_word(const char *name, const char *text, const char *const *words)
{
    char legal[256] = "";
    for (int64_t i = 0; words[i] != NULL; i++) {
        if (strcmp(text, words[i]) == 0) return i;
        const size_t used = strlen(legal);
        (void)snprintf(legal + used, sizeof legal - used, " %s", words[i]);
    }
    hz_refuse("--%s %s: want one of:%s", name, text, legal);
}

/* --- the common options ---------------------------------------------------------------------- */

static void set_touch(void *target, const char *name, const char *text)
{
    ((hz_options *)target)->touch = (hz_touch)parse_word(name, text, touch_words);
}

#define HZ_TARGET hz_options
static const hz_option common[] = {
    {"threads", "N", "threads (default: one per CPU, or what the workload needs)",
     HZ_NUMBER(WHOLE, threads, 1, HZ_TURNS_MAX_THREADS)},
    {"seconds", "S", "length of the counted window (default 1)",
     HZ_NUMBER(DECIMAL, seconds, 0.001, SECONDS_MAX)},
    {"warmup", "S", "seconds of work before the window (default 0.2)",
     HZ_NUMBER(DECIMAL, warmup, 0, SECONDS_MAX)},
    {"ops", "N", "fixed work, in operations over all threads; adds checksums of the requests",
     HZ_NUMBER(LONG, ops, 1, 0x1p48)},
    {"seed", "K", "of every random number (default 1)", HZ_NUMBER(LONG, seed, 0, 0x1p64)},
    {"touch", "WORD",
     "what a new block gets: none, head (64 bytes, and one in each 4 KiB; default), full",
     HZ_DO(set_touch)},
    {"turns", "FD", "obey the turns of a conductor through this inherited descriptor",
     HZ_NUMBER(WHOLE, turns_fd, 0, INT32_MAX)},
    {"rests", "N",
     "N rounds: work, free everything, say so on stdout, and wait for a line on stdin",
     HZ_NUMBER(WHOLE, rests, 1, 1000)},
    {"latency", NULL, "time every call (a run of its own: it changes the throughput)",
     HZ_STORE(FLAG, latency)},
    {"json", NULL, "one JSON object on stdout instead of lines", HZ_STORE(FLAG, json)},
    {"list", NULL, "list the workloads, their parameters and settings", HZ_STORE(FLAG, list)},
};

/* --- the workload and its parameters --------------------------------------------------------- */

static const hz_workload *find_workload(const char *name, size_t length)
{
    for (size_t i = 0; i < hz_workload_count(); i++) {
        const hz_workload *workload = hz_workload_at(i);
        if (strlen(workload->name) == length && strncmp(workload->name, name, length) == 0)
            return workload;
    }
    hz_refuse("no workload is called %.*s: see hz-bench --list", (int)length, name);
}

static void set_param(void *target, const char *name, const char *text)
{
    hz_options *options = target;
    const hz_workload *workload = options->workload;
    if (workload == NULL) hz_refuse("--%s: parameters stand after the workload's name", name);
    for (size_t i = 0; i < workload->param_count; i++) {
        const hz_bench_param *param = &workload->params[i];
        if (!hz_same_name(name, param->name)) continue;
        options->values[i] =
            param->choices != NULL
                ? parse_word(name, text, param->choices)
                : (int64_t)hz_parse_whole(name, text, (uint64_t)param->low, (uint64_t)param->high);
        return;
    }
    hz_refuse(
        "--%s: neither an option nor a parameter of %s: see hz-bench --help and hz-bench --list",
        name, workload->name);
}

/* Takes the next "name=value" off *cursor; false at the end. */
bool hz_setting_next(const char **cursor, char *name, size_t name_size, char *value,
                     size_t value_size)
{
    const char *start = *cursor + strspn(*cursor, " ");
    const size_t length = strcspn(start, " ");
    const size_t name_length = strcspn(start, "=");
    if (length == 0) return false;
    (void)snprintf(name, name_size, "%.*s", (int)name_length, start);
    (void)snprintf(value, value_size, "%.*s", (int)(length - name_length - 1),
                   start + name_length + 1);
    *cursor = start + length;
    return true;
}

static void apply_setting(hz_options *options, const char *setting)
{
    const hz_workload *workload = options->workload;
    for (size_t i = 0; i < workload->setting_count; i++) {
        if (strcmp(workload->settings[i].name, setting) != 0) continue;
        const char *cursor = workload->settings[i].values;
        char name[64];
        char value[64];
        while (hz_setting_next(&cursor, name, sizeof name, value, sizeof value))
            set_param(options, name, value);
        return;
    }
    hz_refuse("%s has no setting called %s: see hz-bench --list", workload->name, setting);
}

static void choose_workload(hz_options *options, const char *text)
{
    const size_t length = strcspn(text, "@:");
    const hz_workload *workload = find_workload(text, length);
    options->workload = workload;
    if (workload->open != NULL) {
        if (text[length] != ':' || text[length + 1] == '\0')
            hz_refuse("%s: it replays a file: write %s:FILE", text, workload->name);
        options->file = text + length + 1;
    } else if (text[length] == ':') {
        hz_refuse("%s: %s has no file", text, workload->name);
    }
    for (size_t i = 0; i < workload->param_count; i++)
        options->values[i] = workload->params[i].default_value;
    if (options->file == NULL && text[length] == '@') {
        options->setting = text + length + 1;
        apply_setting(options, options->setting);
    }
}

/* --- the whole line -------------------------------------------------------------------------- */

static const hz_command command = {
    "usage: hz-bench WORKLOAD[@SETTING] [options] [--PARAMETER VALUE ...]\n"
    "       hz-bench trace:FILE [options] [--PARAMETER VALUE ...]\n"
    "       hz-bench --list [--json]\n\n"
    "Runs an allocation workload with the malloc of this process (LD_PRELOAD another one).\n",
    common, HZ_LENGTH(common), set_param};

static void check_together(hz_options *options)
{
    const hz_workload *workload = options->workload;
    if (workload == NULL)
        hz_refuse("the workload is missing: hz-bench WORKLOAD [options], or hz-bench --list");
    if (options->file != NULL) {
        const unsigned threads = workload->open(options);
        if (options->threads != 0 && options->threads != threads)
            hz_refuse("--threads %u: %s has %u thread%s, and each is replayed by one; leave the "
                      "option out",
                      options->threads, options->file, threads, threads == 1 ? "" : "s");
        options->threads = threads;
    }
    if (options->threads == 0) {
        const unsigned cpus = hz_cpu_count();
        options->threads = cpus > workload->min_threads ? cpus : workload->min_threads;
    }
    if (options->threads < workload->min_threads)
        hz_refuse("--threads %u: %s needs at least %u", options->threads, workload->name,
                  workload->min_threads);
    if (options->ops != 0 && options->turns_fd >= 0)
        hz_refuse("--ops and --turns exclude each other: turns measure a steady state, --ops is "
                  "fixed work");
    if (options->rests != 0 && options->turns_fd >= 0)
        hz_refuse("--rests and --turns exclude each other: a conductor waits for no rest");
    if (options->rests != 0 && options->file != NULL)
        hz_refuse("--rests: a trace has no rests of its own; leave the option out");
}

/* Fills `options` from the command line, or says what is wrong with it and leaves. */
void hz_options_parse(hz_options *options, int argc, char **argv)
{
    *options = (hz_options){.setting = "",
                            .seconds = 1,
                            .warmup = 0.2,
                            .seed = 1,
                            .touch = HZ_TOUCH_HEAD,
                            .turns_fd = -1};
    for (int at = 1; at < argc;) {
        if (strncmp(argv[at], "--", 2) == 0)
            at = hz_parse_option(&command, options, at, argc, argv);
        else if (options->workload == NULL)
            choose_workload(options, argv[at++]);
        else
            hz_refuse("%s: one workload at a time (%s)", argv[at], options->workload->name);
    }
    if (!options->list) check_together(options);
}
