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

static void set_threads(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->threads = (unsigned)hz_parse_whole(name, text, 1, HZ_TURNS_MAX_THREADS);
}
static void set_seconds(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->seconds = hz_parse_decimal(name, text, 0.001, SECONDS_MAX);
}
static void set_warmup(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->warmup = hz_parse_decimal(name, text, 0, SECONDS_MAX);
}
static void set_ops(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->ops = hz_parse_whole(name, text, 1, UINT64_C(1) << 48);
}
static void set_seed(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->seed = hz_parse_whole(name, text, 0, UINT64_MAX);
}
static void set_touch(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->touch = (hz_touch)parse_word(name, text, touch_words);
}
static void set_turns(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->turns_fd = (int)hz_parse_whole(name, text, 0, INT32_MAX);
}
static void set_rests(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    o->rests = (unsigned)hz_parse_whole(name, text, 1, 1000);
}
static void set_latency(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    (void)name, (void)text;
    o->latency = true;
}
static void set_json(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    (void)name, (void)text;
    o->json = true;
}
static void set_list(void *target, const char *name, const char *text)
{
    hz_options *o = target;
    (void)name, (void)text;
    o->list = true;
}

static const hz_option common[] = {
    {"threads", "N", set_threads, "threads (default: one per CPU, or what the workload needs)"},
    {"seconds", "S", set_seconds, "length of the counted window (default 1)"},
    {"warmup", "S", set_warmup, "seconds of work before the window (default 0.2)"},
    {"ops", "N", set_ops,
     "fixed work, in operations over all threads; adds checksums of the requests"},
    {"seed", "K", set_seed, "of every random number (default 1)"},
    {"touch", "WORD", set_touch,
     "what a new block gets: none, head (64 bytes, and one in each 4 KiB; default), full"},
    {"turns", "FD", set_turns, "obey the turns of a conductor through this inherited descriptor"},
    {"rests", "N", set_rests,
     "N rounds: work, free everything, say so on stdout, and wait for a line on stdin"},
    {"latency", NULL, set_latency, "time every call (a run of its own: it changes the throughput)"},
    {"json", NULL, set_json, "one JSON object on stdout instead of lines"},
    {"list", NULL, set_list, "list the workloads, their parameters and settings"},
};

static void print_help(void)
{
    (void)printf("usage: hz-bench WORKLOAD[@SETTING] [options] [--PARAMETER VALUE ...]\n"
                 "       hz-bench trace:FILE [options] [--PARAMETER VALUE ...]\n"
                 "       hz-bench --list [--json]\n\n"
                 "Runs an allocation workload with the malloc of this process (LD_PRELOAD another "
                 "one).\n\n");
    hz_print_options(common, HZ_LENGTH(common));
    (void)printf("\nworkloads:");
    for (size_t i = 0; i < hz_workload_count(); i++) (void)printf(" %s", hz_workload_at(i)->name);
    (void)printf("\n");
}

/* --- the workload and its parameters --------------------------------------------------------- */

static bool same_name(const char *given, const char *name)
{
    for (; *given != '\0' && *name != '\0'; given++, name++)
        if (*given != *name && !(*given == '-' && *name == '_')) return false;
    return *given == *name;
}

static const hz_workload *find_workload(const char *name, size_t length)
{
    for (size_t i = 0; i < hz_workload_count(); i++) {
        const hz_workload *workload = hz_workload_at(i);
        if (strlen(workload->name) == length && strncmp(workload->name, name, length) == 0)
            return workload;
    }
    hz_refuse("no workload is called %.*s: see hz-bench --list", (int)length, name);
}

static void set_param(hz_options *options, const char *name, const char *text)
{
    const hz_workload *workload = options->workload;
    for (size_t i = 0; i < workload->param_count; i++) {
        const hz_bench_param *param = &workload->params[i];
        if (!same_name(name, param->name)) continue;
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

static const hz_option *find_common(const char *name)
{
    for (size_t i = 0; i < HZ_LENGTH(common); i++)
        if (same_name(name, common[i].name)) return &common[i];
    return NULL;
}

/* Reads one option from argv[at]; returns the index of its last word. */
static int parse_own_option(hz_options *options, int argc, char **argv, int at)
{
    char name[64];
    const char *word = argv[at] + 2;
    const size_t length = strcspn(word, "=");
    (void)snprintf(name, sizeof name, "%.*s", (int)length, word);
    const hz_option *row = find_common(name);
    const char *text = word[length] == '=' ? word + length + 1 : NULL;
    if (row != NULL && row->value == NULL) {
        if (text != NULL) hz_refuse("--%s takes no value", name);
    } else if (text == NULL) {
        if (++at == argc) hz_refuse("--%s: its value is missing", name);
        text = argv[at];
    }
    if (row != NULL)
        row->set(options, name, text);
    else if (options->workload != NULL)
        set_param(options, name, text);
    else
        hz_refuse("--%s: parameters stand after the workload's name", name);
    return at;
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
    for (int at = 1; at < argc; at++) {
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_help();
            exit(0);
        }
        if (strncmp(argv[at], "--", 2) == 0)
            at = parse_own_option(options, argc, argv, at);
        else if (options->workload == NULL)
            choose_workload(options, argv[at]);
        else
            hz_refuse("%s: one workload at a time (%s)", argv[at], options->workload->name);
    }
    if (!options->list) check_together(options);
}
