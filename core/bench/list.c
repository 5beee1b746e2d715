/*
 * The workloads. To add one: write its file in workloads/, name it here and in CMakeLists.txt.
 *
 * --list tells every workload with its parameters and settings, for people and (--json) for
 * programs; behind the name of a workload, that one alone, and what is known of the file that it
 * replays.
 */
#include <stdio.h>

#include "bench.h"

#define HZ_WORKLOADS(X)                                                                            \
    X(larson)                                                                                      \
    X(remote)                                                                                      \
    X(pipeline)                                                                                    \
    X(xmalloc)                                                                                     \
    X(lifo)                                                                                        \
    X(fifo)                                                                                        \
    X(random)                                                                                      \
    X(interleaved)                                                                                 \
    X(mixed)                                                                                       \
    X(mstress)                                                                                     \
    X(rptest)                                                                                      \
    X(sh6)                                                                                         \
    X(sh8)                                                                                         \
    X(alloctest)                                                                                   \
    X(cache_scratch)                                                                               \
    X(cache_thrash)                                                                                \
    X(large)                                                                                       \
    X(threads)                                                                                     \
    X(burst_idle)                                                                                  \
    X(kv)                                                                                          \
    X(app)                                                                                         \
    X(trace)

#define DECLARE(name) extern const hz_workload hz_workload_##name;
HZ_WORKLOADS(DECLARE)

/* A build may bring one workload of its own (-DHZ_EXTRA_WORKLOAD=path.c), which defines this. */
#ifdef HZ_EXTRA_WORKLOAD
extern const hz_workload hz_extra_workload;
#endif

#define ROW(name) &hz_workload_##name,
static const hz_workload *const workloads[] = {
    HZ_WORKLOADS(ROW)
#ifdef HZ_EXTRA_WORKLOAD
        & hz_extra_workload,
#endif
};

size_t hz_workload_count(void)
{
    return HZ_LENGTH(workloads);
}

/* Row `index`, or NULL past the end. */
const hz_workload *hz_workload_at(size_t index)
{
    return index < HZ_LENGTH(workloads) ? workloads[index] : NULL;
}

/* --- --list ---------------------------------------------------------------------------------- */

/* Writes `value` of `param` as it would stand on the command line. */
void hz_param_text(const hz_bench_param *param, int64_t value, char *text, size_t size)
{
    if (param->choices != NULL)
        (void)snprintf(text, size, "%s", param->choices[value]);
    else
        (void)snprintf(text, size, "%lld", (long long)value);
}

static void json_param(hz_json *json, const hz_bench_param *param)
{
    hz_json_object(json, NULL);
    hz_json_string(json, "name", param->name);
    if (param->choices != NULL) {
        hz_json_string(json, "default", param->choices[param->default_value]);
        hz_json_array(json, "choices");
        for (size_t i = 0; param->choices[i] != NULL; i++)
            hz_json_string(json, NULL, param->choices[i]);
        hz_json_array_end(json);
    } else {
        hz_json_int(json, "default", param->default_value);
        hz_json_int(json, "low", param->low);
        hz_json_int(json, "high", param->high);
    }
    hz_json_string(json, "unit", param->unit);
    hz_json_string(json, "doc", param->doc);
    hz_json_object_end(json);
}

/* The row of `workload` called `name`; settings are written beside the table, so it is there. */
static const hz_bench_param *find_param(const hz_workload *workload, const char *name)
{
    for (size_t i = 0; i < workload->param_count; i++)
        if (strcmp(workload->params[i].name, name) == 0) return &workload->params[i];
    hz_fail("setting of %s names an unknown parameter %s", workload->name, name);
}

static void json_setting(hz_json *json, const hz_workload *workload,
                         const hz_bench_setting *setting)
{
    char name[64];
    char value[64];
    const char *cursor = setting->values;
    hz_json_object(json, NULL);
    hz_json_string(json, "name", setting->name);
    hz_json_string(json, "doc", setting->doc);
    hz_json_object(json, "values");
    while (hz_setting_next(&cursor, name, sizeof name, value, sizeof value)) {
        if (find_param(workload, name)->choices != NULL)
            hz_json_string(json, name, value);
        else
            hz_json_int(json, name, strtoll(value, NULL, 10));
    }
    hz_json_object_end(json);
    hz_json_object_end(json);
}

static void json_workload(hz_json *json, const hz_workload *workload, const hz_options *options)
{
    hz_json_object(json, NULL);
    hz_json_string(json, "name", workload->name);
    hz_json_string(json, "doc", workload->doc);
    hz_json_string(json, "source", workload->source);
    hz_json_int(json, "min_threads", workload->min_threads);
    hz_json_bool(json, "steady", workload->steady);
    hz_json_bool(json, "file", workload->open != NULL);
    hz_json_array(json, "params");
    for (size_t i = 0; i < workload->param_count; i++) json_param(json, &workload->params[i]);
    hz_json_array_end(json);
    hz_json_array(json, "settings");
    for (size_t i = 0; i < workload->setting_count; i++)
        json_setting(json, workload, &workload->settings[i]);
    hz_json_array_end(json);
    if (options->opened != NULL) workload->describe(options, json);
    hz_json_object_end(json);
}

static bool is_listed(const hz_options *options, const hz_workload *workload)
{
    return options->workload == NULL || options->workload == workload;
}

static void list_json(const hz_options *options)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    hz_json_int(&json, "schema", 1);
    hz_json_array(&json, "workloads");
    for (size_t i = 0; i < hz_workload_count(); i++)
        if (is_listed(options, hz_workload_at(i))) json_workload(&json, hz_workload_at(i), options);
    hz_json_array_end(&json);
    hz_json_end_line(&json);
}

static void print_param(const hz_bench_param *param)
{
    char text[64];
    hz_param_text(param, param->default_value, text, sizeof text);
    (void)printf("    --%-14s %s (default %s", param->name, param->doc, text);
    if (param->choices == NULL)
        (void)printf("; %lld..%lld %s", (long long)param->low, (long long)param->high, param->unit);
    else
        for (size_t i = 0; param->choices[i] != NULL; i++)
            (void)printf("%s%s", i == 0 ? "; " : "|", param->choices[i]);
    (void)printf(")\n");
}

static void print_workload(const hz_workload *workload)
{
    (void)printf("%s%s: %s\n    source: %s; threads: %u or more; %s\n", workload->name,
                 workload->open != NULL ? ":FILE" : "", workload->doc, workload->source,
                 workload->min_threads,
                 workload->steady ? "steady" : "not steady: measured by whole runs");
    for (size_t i = 0; i < workload->param_count; i++) print_param(&workload->params[i]);
    for (size_t i = 0; i < workload->setting_count; i++)
        (void)printf("    @%-15s %s: %s\n", workload->settings[i].name, workload->settings[i].doc,
                     workload->settings[i].values);
}

void hz_list_print(hz_options *options)
{
    if (options->file != NULL) options->threads = options->workload->open(options);
    if (options->json) {
        list_json(options);
        return;
    }
    for (size_t i = 0; i < hz_workload_count(); i++)
        if (is_listed(options, hz_workload_at(i))) print_workload(hz_workload_at(i));
}
