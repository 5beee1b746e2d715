/*
 * The result of a run, one JSON object, with the allocator that it ran on: proved, not assumed. A
 * run that did not do what was asked fails in words.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "libraries.h"
#include "procfs.h"

enum { FIGURES_ROOM = 64 * 1024 };

/* --- the remote share ------------------------------------------------------------------------ */

/* Frees by another player, in percent of all; and how far from its target chance may put it. */
typedef struct share {
    double percent;   /* what came out */
    double tolerance; /* what may lie between it and the target */
} share;

/* 0.5 points, or five standard errors where a short run has so few frees that chance alone exceeds
 * that. */
static share remote_share(const hz_run *run)
{
    double remote = 0;
    double frees = 0;
    for (unsigned i = 0; i < run->threads; i++) {
        remote += (double)run->players[i].remote_frees;
        frees += (double)(run->players[i].remote_frees + run->players[i].local_frees);
    }
    const double target = run->remote_target / 100;
    const double chance = frees > 0 ? 500 * sqrt(target * (1 - target) / frees) : 100;
    return (share){100 * remote / frees, chance > 0.5 ? chance : 0.5};
}

/* --- members --------------------------------------------------------------------------------- */

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
    hz_json_string(json, "touch", hz_touch_words[options->touch]);
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

static void json_share(hz_json *json, const hz_run *run)
{
    const share came = remote_share(run);
    hz_json_double(json, "remote_target", run->remote_target < 0 ? NAN : run->remote_target);
    hz_json_double(json, "remote_share", came.percent); /* null when no frees were counted */
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

static void print_json(const hz_run *run, const hz_result *result)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    json_asked(&json, run);
    json_speed(&json, run, result);
    json_memory(&json, run, result);
    json_share(&json, run);
    json_allocator(&json);
    hz_instruments_report(run, &json);
    if (run->workload->report != NULL) run->workload->report(run, &json);
    hz_json_end_line(&json);
}

/* Prints the result; returns the exit status. */
int hz_report_run(const hz_run *run, const hz_result *result)
{
    print_json(run, result);
    if (run->remote_target < 0) return HZ_STATUS_OK;
    const share came = remote_share(run);
    /* Without a free the share is NaN, for which the comparison is false: no target is missed. */
    const bool missed = fabs(came.percent - run->remote_target) > came.tolerance;
    if (!missed) return HZ_STATUS_OK;
    (void)fprintf(stderr,
                  "hz-bench: %.2f %% of the frees were remote, asked were %.2f %%: more than %.2f "
                  "points off\n",
                  came.percent, run->remote_target, came.tolerance);
    return HZ_STATUS_FAILED;
}
