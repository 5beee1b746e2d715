/*
 * The events of hz-alternate: one JSON object a line, flushed at once.
 */
#include <string.h>

#include "alternate.h"

static hz_json unit_event(const char *event, const hz_unit *unit)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    hz_json_string(&json, "event", event);
    if (unit != NULL) {
        hz_json_string(&json, "unit", unit->key);
        hz_json_int(&json, "run", unit->run);
    }
    return json;
}

void hz_alternate_started(const hz_unit *unit, const hz_job *job)
{
    hz_json json = unit_event("start", unit);
    hz_json_bool(&json, "service", job == &unit->service);
    hz_json_int(&json, "pid", job->keeper.pid);
    hz_json_int(&json, "program_pid", job->program);
    hz_json_end_line(&json);
}

void hz_alternate_asks(const char *event, const hz_unit *unit)
{
    hz_json json = unit_event(event, unit);
    hz_json_end_line(&json);
}

/* --- how a job ended ------------------------------------------------------------------------- */

/* The beginning of stderr, and what of its end does not belong to that. */
static void write_stderr(hz_json *json, const hz_job *job)
{
    static char text[HZ_STDERR_HEAD + HZ_CAPTURE_BYTES];
    static char tail[HZ_CAPTURE_BYTES];
    const hz_capture *err = &job->keeper.err;
    const size_t kept = hz_capture_copy(err, tail);
    const uint64_t beyond = err->total - job->head_bytes;
    const size_t added = beyond < kept ? (size_t)beyond : kept;
    memcpy(text, job->head, job->head_bytes);
    memcpy(text + job->head_bytes, tail + kept - added, added);
    hz_json_bytes(json, "stderr", text, job->head_bytes + added);
}

static void write_ending(hz_json *json, const hz_job *job)
{
    size_t size = job->report_bytes;
    while (size > 0 && job->report[size - 1] == '\n') size--;
    if (job->killed_as != NULL)
        hz_json_string(json, "ended_as", job->killed_as);
    else
        hz_json_null(json, "ended_as");
    write_stderr(json, job);
    if (hz_json_is_object(job->report, size))
        hz_json_raw(json, "result", job->report, size);
    else
        hz_json_null(json, "result");
}

void hz_alternate_ran(const hz_unit *unit, int64_t end_ns)
{
    hz_json json = unit_event("run", unit);
    hz_json_int(&json, "position", (int64_t)unit->position);
    hz_json_int(&json, "start_ns", unit->start_ns);
    hz_json_int(&json, "active_ns", unit->active_ns);
    hz_json_int(&json, "alive_ns", end_ns - unit->start_ns);
    hz_json_bool(&json, "asked", unit->main.was_asked);
    hz_json_int(&json, "turns", unit->turns);
    hz_json_int(&json, "awake", unit->awake);
    hz_json_int(&json, "beside", unit->beside);
    hz_json_int(&json, "threads", unit->tree.threads);
    hz_json_int(&json, "delay_before_ns", unit->main.delay_ns);
    hz_json_int(&json, "stdout_bytes", (int64_t)unit->main.stdout_bytes);
    if (unit->service.words != NULL) hz_json_int(&json, "service_cpu_ns", unit->service_cpu_ns);
    write_ending(&json, &unit->main);
    hz_json_end_line(&json);
}

void hz_alternate_served(const hz_unit *unit)
{
    hz_json json = unit_event("service", unit);
    write_ending(&json, &unit->service);
    hz_json_end_line(&json);
}

void hz_alternate_ended(int64_t wall_ns)
{
    hz_json json = unit_event("end", NULL);
    hz_json_int(&json, "wall_ns", wall_ns);
    hz_json_end_line(&json);
}
