/*
 * hz-bench: runs one allocation workload with whatever malloc this process has, and reports it.
 *
 * The command line is WORKLOAD[@SETTING] or WORKLOAD:FILE, and options: common ones from the table
 * below, the workload's from its own.
 */
#include <stdio.h>

#include "bench.h"

enum { SECONDS_MAX = 86400 };

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

#define HZ_TARGET hz_options
static const hz_option common[] = {
    {"threads", "N", "threads (default: one per CPU, or what the workload needs)",
     HZ_NUMBER(WHOLE, threads, 1, HZ_TURNS_MAX_THREADS)},
    {"seconds", "S", "length of the counted window (default 1)",
     HZ_NUMBER(DECIMAL, seconds, 0.001, SECONDS_MAX)},
    {"warmup", "S", "seconds of work before the window (default 0.2)",
     HZ_NUMBER(DECIMAL, warmup, 0, SECONDS_MAX)},
    {"ops", "N", "fixed work, in operations over all threads", HZ_NUMBER(LONG, ops, 1, 0x1p48)},
    {"seed", "K", "of every random number (default 1)", HZ_NUMBER(LONG, seed, 0, 0x1p64)},
    {"turns", "FD", "obey the turns of a conductor through this inherited descriptor",
     HZ_NUMBER(WHOLE, turns_fd, 0, INT32_MAX)},
    {"rests", "N",
     "N rounds: work, free everything, say so on stdout, and wait for a line on stdin",
     HZ_NUMBER(WHOLE, rests, 1, 1000)},
    {"latency", NULL, "time every call (a run of its own: it changes the throughput)",
     HZ_STORE(FLAG, latency)},
    {"list", NULL, "list the workloads, their parameters and settings", HZ_STORE(FLAG, list)},
};

/* --- the workload and its parameters --------------------------------------------------------- */

static const hz_workload *find_workload(const char *name, size_t length)
{
    for (size_t i = 0; hz_workloads[i] != NULL; i++)
        if (strlen(hz_workloads[i]->name) == length &&
            strncmp(hz_workloads[i]->name, name, length) == 0)
            return hz_workloads[i];
    hz_refuse("no workload is called %.*s: see hz-bench --list", (int)length, name);
}

/* The row of a parameter of the workload; NULL: it has none of that name. */
const hz_bench_param *hz_find_param(const hz_workload *workload, const char *name)
{
    for (const hz_bench_param *param = workload->params; param->name != NULL; param++)
        if (hz_same_name(name, param->name)) return param;
    return NULL;
}

static void set_param(void *target, const char *name, const char *text)
{
    hz_options *options = target;
    const hz_workload *workload = options->workload;
    if (workload == NULL) hz_refuse("--%s: parameters stand after the workload's name", name);
    const hz_bench_param *param = hz_find_param(workload, name);
    if (param == NULL)
        hz_refuse("--%s: neither an option nor a parameter of %s: see hz-bench --help and hz-bench "
                  "--list",
                  name, workload->name);
    options->values[param - workload->params] =
        param->choices != NULL
            ? parse_word(name, text, param->choices)
            : (int64_t)hz_parse_whole(name, text, (uint64_t)param->low, (uint64_t)param->high);
}

/* Takes the next "name=value" off a setting; returns what follows it, NULL at the end. */
const char *hz_setting_next(const char *values, char name[64], char value[64])
{
    int used = 0;
    return sscanf(values, " %63[^=]=%63s%n", name, value, &used) == 2 ? values + used : NULL;
}

static void apply_setting(hz_options *options, const char *name)
{
    const hz_bench_setting *setting = options->workload->settings;
    while (setting->name != NULL && strcmp(setting->name, name) != 0) setting++;
    if (setting->name == NULL)
        hz_refuse("%s has no setting called %s: see hz-bench --list", options->workload->name,
                  name);
    char param[64];
    char value[64];
    for (const char *rest = setting->values; (rest = hz_setting_next(rest, param, value)) != NULL;)
        set_param(options, param, value);
    options->setting = name;
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
    for (size_t i = 0; workload->params[i].name != NULL; i++)
        options->values[i] = workload->params[i].default_value;
    if (text[length] == '@') apply_setting(options, text + length + 1);
}

/* --- the whole line -------------------------------------------------------------------------- */

static const hz_command command = {
    "usage: hz-bench WORKLOAD[@SETTING] [options] [--PARAMETER VALUE ...]\n"
    "       hz-bench trace:FILE [options] [--PARAMETER VALUE ...]\n"
    "       hz-bench --list\n\n"
    "Runs an allocation workload with the malloc of this process (LD_PRELOAD another one), and\n"
    "writes one JSON object.\n",
    common, HZ_LENGTH(common), set_param};

/* The value of a parameter; NULL: the workload has none of that name. */
const int64_t *hz_bench_value(const hz_options *options, const char *name)
{
    const hz_bench_param *param = name != NULL ? hz_find_param(options->workload, name) : NULL;
    return param != NULL ? &options->values[param - options->workload->params] : NULL;
}

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
    const unsigned least = workload->needs_two ? 2 : 1;
    const unsigned cpus = hz_cpu_count();
    if (options->threads == 0) options->threads = cpus > least ? cpus : least;
    if (options->threads < least)
        hz_refuse("--threads %u: %s needs at least %u", options->threads, workload->name, least);
    const int64_t *low = hz_bench_value(options, "min_size");
    const int64_t *high = hz_bench_value(options, "max_size");
    if (low != NULL && high != NULL && *high < *low)
        hz_refuse("--max_size %lld: less than --min_size %lld", (long long)*high, (long long)*low);
    if (options->ops != 0 && options->turns_fd >= 0)
        hz_refuse("--ops and --turns exclude each other: turns measure a steady state, --ops is "
                  "fixed work");
    if (options->rests != 0 && options->turns_fd >= 0)
        hz_refuse("--rests and --turns exclude each other: a conductor waits for no rest");
    if (options->rests != 0 && options->file != NULL)
        hz_refuse("--rests: a trace has no rests of its own; leave the option out");
}

static void parse(hz_options *options, int argc, char **argv)
{
    *options = (hz_options){.setting = "", .seconds = 1, .warmup = 0.2, .seed = 1, .turns_fd = -1};
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

int main(int argc, char **argv)
{
    hz_options options;
    hz_run run;
    hz_result result;
    parse(&options, argc, argv);
    if (options.list) {
        hz_list_print(&options);
        return HZ_STATUS_OK;
    }
    hz_run_init(&run, &options);
    hz_run_execute(&run, &result);
    hz_report_run(&run, &result);
    return HZ_STATUS_OK;
}
