/*
 * The workloads. To add one: write its file in workloads/, and name it here.
 *
 * --list tells every workload with its parameters and settings; behind the name of a workload, that
 * one alone, and what is known of the file that it replays.
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
const hz_workload *const hz_workloads[] = {
    HZ_WORKLOADS(ROW)
#ifdef HZ_EXTRA_WORKLOAD
        & hz_extra_workload,
#endif
    NULL,
};

/* --- --list ---------------------------------------------------------------------------------- */

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

static void json_setting(hz_json *json, const hz_workload *workload,
                         const hz_bench_setting *setting)
{
    char name[64];
    char value[64];
    hz_json_object(json, NULL);
    hz_json_string(json, "name", setting->name);
    hz_json_string(json, "doc", setting->doc);
    hz_json_object(json, "values");
    for (const char *rest = setting->values; (rest = hz_setting_next(rest, name, value)) != NULL;) {
        const hz_bench_param *param = hz_find_param(workload, name);
        if (param == NULL)
            hz_fail("setting of %s names an unknown parameter %s", workload->name, name);
        if (param->choices != NULL)
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
    hz_json_int(json, "min_threads", workload->needs_two ? 2 : 1);
    hz_json_bool(json, "steady", !workload->is_unsteady);
    hz_json_bool(json, "file", workload->open != NULL);
    hz_json_array(json, "params");
    for (size_t i = 0; workload->params[i].name != NULL; i++)
        json_param(json, &workload->params[i]);
    hz_json_array_end(json);
    hz_json_array(json, "settings");
    for (size_t i = 0; workload->settings[i].name != NULL; i++)
        json_setting(json, workload, &workload->settings[i]);
    hz_json_array_end(json);
    if (options->opened != NULL) workload->describe(options, json);
    hz_json_object_end(json);
}

void hz_list_print(hz_options *options)
{
    hz_json json = {.out = stdout};
    if (options->file != NULL) options->threads = options->workload->open(options);
    hz_json_object(&json, NULL);
    hz_json_array(&json, "workloads");
    for (size_t i = 0; hz_workloads[i] != NULL; i++)
        if (options->workload == NULL || options->workload == hz_workloads[i])
            json_workload(&json, hz_workloads[i], options);
    hz_json_array_end(&json);
    hz_json_end_line(&json);
}
