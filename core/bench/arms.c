/*
 * The arms of a conductor: see conductor.h. While it waits, the pipes of all arms are emptied, arms
 * that end are noticed, and a signal that asks for the end is obeyed.
 */
#include <poll.h>
#include <string.h>

#include "conductor.h"
#include "procfs.h"

enum { FDS_PER_ARM = 3, SLICE_NS = 20 * 1000 * 1000 };

hz_json hz_arm_event(const char *event, const hz_arm *arm)
{
    hz_json json = {.out = stdout};
    hz_json_object(&json, NULL);
    hz_json_string(&json, "event", event);
    if (arm != NULL) hz_json_string(&json, "arm", arm->key);
    return json;
}

static void tell_exit(const hz_arm *arm)
{
    static char text[HZ_CAPTURED_MAX];
    const bool is_whole = arm->child.out.total <= HZ_CAPTURE_BYTES;
    const hz_ending *end = &arm->child.end;
    const char *status = hz_child_status(&arm->child);
    /* One that ended before it was told to quit has failed, whatever its exit status. */
    if (strcmp(status, "ok") == 0 && !arm->told_to_quit) status = "failed";
    hz_json json = hz_arm_event("exit", arm);
    hz_json_string(&json, "status", status);
    hz_json_int(&json, "signal", end->signal);
    hz_json_int(&json, "code", end->code);
    hz_json_int(&json, "rss_peak_kb", end->usage.ru_maxrss - atomic_load(&arm->page->own_kb));
    hz_json_int(&json, "minor_faults", end->usage.ru_minflt);
    hz_json_bytes(&json, "stderr", text, hz_capture_copy(&arm->child.err, text));
    hz_json_report(&json, "result", text, is_whole ? hz_capture_copy(&arm->child.out, text) : 0);
    hz_json_end_line(&json);
}

size_t hz_arms_alive(const hz_conductor *conductor)
{
    size_t alive = 0;
    for (size_t i = 0; i < conductor->arm_count; i++) alive += !conductor->arms[i].gone;
    return alive;
}

static void report_end(hz_arm *arm)
{
    hz_capture_read_rest(&arm->child.out);
    hz_capture_read_rest(&arm->child.err);
    arm->gone = true;
    tell_exit(arm);
}

void hz_arm_kill(hz_arm *arm, const char *reason)
{
    if (arm->gone) return;
    hz_child_kill(&arm->child, reason);
    report_end(arm);
}

int64_t hz_arm_rss_kb(const hz_arm *arm)
{
    return hz_proc_rss_kb(arm->child.pid) - atomic_load(&arm->page->own_kb);
}

void hz_arm_check_memory(const hz_conductor *conductor, hz_arm *arm)
{
    if (conductor->rss_limit_kb > 0 && !arm->gone && hz_arm_rss_kb(arm) > conductor->rss_limit_kb)
        hz_arm_kill(arm, "oom");
}

/* The descriptors to look at: the signals', then three of each arm (-1 is passed over by poll). */
static nfds_t gather_arms(const hz_conductor *conductor, struct pollfd *fds)
{
    nfds_t count = 0;
    fds[count++] = (struct pollfd){.fd = conductor->signal_fd, .events = POLLIN};
    for (size_t i = 0; i < conductor->arm_count; i++) {
        const hz_arm *arm = &conductor->arms[i];
        fds[count++] = (struct pollfd){.fd = arm->gone ? -1 : arm->child.pidfd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = arm->gone ? -1 : arm->child.out.fd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = arm->gone ? -1 : arm->child.err.fd, .events = POLLIN};
    }
    return count;
}

/* Acts on what poll saw of one arm; false when it has ended. */
static bool attend_arm(hz_arm *arm, const struct pollfd *fds)
{
    if (fds[1].revents != 0) (void)hz_capture_read(&arm->child.out);
    if (fds[2].revents != 0) (void)hz_capture_read(&arm->child.err);
    if (fds[0].revents == 0 || !hz_child_reap(&arm->child)) return true;
    report_end(arm);
    return false;
}

/* One look, of at most `timeout_ns`; false when an arm ended or an end was asked for. */
static bool look_at_arms(hz_conductor *conductor, int64_t timeout_ns)
{
    struct pollfd fds[1 + FDS_PER_ARM * HZ_ARMS_MAX];
    const nfds_t count = gather_arms(conductor, fds);
    const struct timespec timeout = {.tv_sec = timeout_ns / 1000000000,
                                     .tv_nsec = timeout_ns % 1000000000};
    if (ppoll(fds, count, &timeout, NULL) <= 0) return true;
    if (fds[0].revents != 0) conductor->interrupted = true;
    bool quiet = !conductor->interrupted;
    for (size_t i = 0; i < conductor->arm_count; i++)
        if (!conductor->arms[i].gone)
            quiet &= attend_arm(&conductor->arms[i], &fds[1 + FDS_PER_ARM * i]);
    return quiet;
}

/* Checks the memory of each arm; false when one was killed for it. */
static bool check_memory(hz_conductor *conductor)
{
    const size_t alive = hz_arms_alive(conductor);
    for (size_t i = 0; i < conductor->arm_count; i++)
        hz_arm_check_memory(conductor, &conductor->arms[i]);
    return hz_arms_alive(conductor) == alive;
}

bool hz_watch(hz_conductor *conductor, int64_t deadline_ns)
{
    int64_t left;
    do {
        left = deadline_ns - hz_clock_ns();
        if (!look_at_arms(conductor, left < 0 ? 0 : left < SLICE_NS ? left : SLICE_NS))
            return false;
        if (left > SLICE_NS && !check_memory(conductor)) return false;
    } while (hz_clock_ns() < deadline_ns);
    return true;
}
