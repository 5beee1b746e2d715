/*
 * The result of a run, one JSON object, with the allocator that it ran on: proved, not assumed.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "bench.h"
#include "libraries.h"
#include "procfs.h"

enum { FIGURES_ROOM = 64 * 1024 };

static void json_params(hz_json *json, const hz_run *run)
{
    hz_json_object(json, "params");
    for (size_t i = 0; run->workload->params[i].name != NULL; i++) {
        const hz_bench_param *param = &run->workload->params[i];
        if (param->choices != NULL)
            hz_json_string(json, param->name, param->choices[run->values[i]]);
        else
            hz_json_int(json, param->name, run->values[i]);
    }
    hz_json_object_end(json);
}

static void json_asked(hz_json *json, const hz_run *run)
{
    const hz_options *options = run->options;
    hz_json_string(json, "workload", run->workload->name);
    hz_json_string(json, "setting", options->setting);
    json_params(json, run);
    hz_json_int(json, "threads", run->threads);
    hz_json_raw(json, "seed", "", 0);
    (void)fprintf(json->out, "%llu", (unsigned long long)options->seed);
}

static void json_speed(hz_json *json, const hz_run *run, const hz_result *result)
{
    const unsigned busy = run->threads < run->cpus ? run->threads : run->cpus;
    hz_json_double(json, "seconds", result->seconds);
    hz_json_int(json, "ops", (int64_t)result->ops);
    hz_json_double(json, "ops_per_s", (double)result->ops / result->seconds);
    hz_json_double(json, "cpu_s", result->cpu_s);
    hz_json_double(json, "cpu_share", result->cpu_s / result->seconds / busy);
}

static void json_memory(hz_json *json, const hz_run *run, const hz_result *result)
{
    hz_json_int(json, "rss_peak_kb", hz_proc_status(getpid(), "VmHWM:") - run->own_kb);
    hz_json_int(json, "own_kb", run->own_kb);
    hz_json_int(json, "live_peak_kb", result->live_peak_kb);
    hz_json_int(json, "minor_faults", (int64_t)result->minor_faults);
}

/* Path of the library whose malloc this process calls, or "". */
static const char *allocator_path(void)
{
    Dl_info info;
    void *address = dlsym(RTLD_DEFAULT, "malloc");
    const bool is_known = address != NULL && dladdr(address, &info) != 0 && info.dli_fname != NULL;
    return is_known ? info.dli_fname : "";
}

/* hz_stats_json's object when hz is in effect, else NULL. */
static const char *hz_figures(void)
{
    static char text[FIGURES_ROOM];
    size_t (*figures)(char *buffer, size_t size);
    *(void **)&figures = dlsym(RTLD_DEFAULT, "hz_stats_json");
    return figures != NULL && figures(text, sizeof text) < sizeof text ? text : NULL;
}

static void json_allocator(hz_json *json)
{
    const char *path = allocator_path();
    const char *figures = hz_figures();
    const char *known = hz_allocator_name(path);
    const char *name = known != NULL ? known : hz_base_name(path);
    hz_json_object(json, "allocator");
    hz_json_string(json, "name", figures != NULL ? "hz" : name);
    hz_json_string(json, "path", path);
    hz_json_object_end(json);
    if (figures != NULL) hz_json_raw(json, "hz", figures, strlen(figures));
}

/* Prints the result. */
void hz_report_run(const hz_run *run, const hz_result *result)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    json_asked(&json, run);
    json_speed(&json, run, result);
    json_memory(&json, run, result);
    json_allocator(&json);
    hz_instruments_report(run, &json);
    if (run->workload->report != NULL) run->workload->report(run, &json);
    hz_json_end_line(&json);
}
