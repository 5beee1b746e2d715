/*
 * The conductor's events: one JSON object a line, flushed at once.
 */
#include <string.h>

#include "conductor.h"
#include "procfs.h"

static hz_json arm_event(const char *event, const hz_arm *arm)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    hz_json_string(&json, "event", event);
    if (arm != NULL) hz_json_string(&json, "arm", arm->key);
    return json;
}

void hz_event_start(const hz_arm *arm)
{
    hz_json json = arm_event("start", arm);
    hz_json_int(&json, "pid", arm->child.pid);
    hz_json_end_line(&json);
}

void hz_event_warm(const hz_arm *arm, int64_t ns)
{
    hz_json json = arm_event("warm", arm);
    hz_json_int(&json, "ns", ns);
    hz_json_end_line(&json);
}

void hz_event_turn(const hz_arm *arm, const hz_turn_event *turn, bool with_gap)
{
    hz_json json = arm_event("turn", arm);
    hz_json_int(&json, "round", turn->round);
    hz_json_int(&json, "position", (int64_t)turn->position);
    hz_json_int(&json, "start_ns", turn->start_ns);
    hz_json_int(&json, "counted_ns", turn->counted_ns);
    hz_json_int(&json, "ops", (int64_t)turn->ops);
    hz_json_int(&json, "cpu_ns", turn->cpu_ns);
    hz_json_int(&json, "involuntary", (int64_t)turn->involuntary);
    hz_json_int(&json, "minor_faults", (int64_t)turn->minor_faults);
    hz_json_int(&json, "steal_ticks", turn->steal_ticks);
    hz_json_int(&json, "psi_us", turn->psi_us);
    hz_json_int(&json, "rss_kb", turn->rss_kb);
    hz_json_int(&json, "live_kb", turn->live_kb);
    if (with_gap) hz_json_int(&json, "gap_cpu_ns", turn->gap_cpu_ns);
    hz_json_end_line(&json);
}

/* An arm that ended before it was told to quit has failed, whatever its exit status. */
static const char *arm_status(const hz_arm *arm)
{
    const char *status = hz_child_status(&arm->child);
    return strcmp(status, "ok") == 0 && !arm->told_to_quit ? "failed" : status;
}

void hz_event_rounds(unsigned done)
{
    hz_json json = arm_event("rounds", NULL);
    hz_json_int(&json, "done", done);
    hz_json_end_line(&json);
}

void hz_event_exit(const hz_arm *arm)
{
    static char text[HZ_CAPTURE_BYTES];
    const bool is_whole = arm->child.out.total <= HZ_CAPTURE_BYTES;
    const hz_ending *end = &arm->child.end;
    hz_json json = arm_event("exit", arm);
    hz_json_string(&json, "status", arm_status(arm));
    hz_json_int(&json, "signal", end->signal);
    hz_json_int(&json, "code", end->code);
    hz_json_int(&json, "rss_peak_kb", end->usage.ru_maxrss - atomic_load(&arm->page->own_kb));
    hz_json_int(&json, "minor_faults", end->usage.ru_minflt);
    hz_json_double(&json, "cpu_s", hz_usage_cpu_s(&end->usage));
    hz_json_bytes(&json, "stderr_tail", text, hz_capture_copy(&arm->child.err, text));
    hz_json_report(&json, "result", text, is_whole ? hz_capture_copy(&arm->child.out, text) : 0);
    hz_json_end_line(&json);
}

void hz_event_end(const hz_conductor *conductor, int64_t wall_ns)
{
    hz_json json = arm_event("end", NULL);
    hz_json_int(&json, "warmup_ns", conductor->warmed_ns);
    hz_json_int(&json, "counted_ns", conductor->counted_ns);
    hz_json_int(&json, "wall_ns", wall_ns);
    hz_json_end_line(&json);
}
