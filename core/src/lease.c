/*
 * Set and govern: see lease.h. All of it runs in the thread that answers, or after that has ended.
 * Stands alone, so that the agent has it, too.
 */
#include "lease.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve.h"

enum {
    SENTENCE_BYTES = 1024,
    HELD_NAME_BYTES = 48,
    VALUE_BYTES = 48,
    SETTINGS_MOST = 32, /* in a request, and under a lease */
    SECONDS_MOST = 60,
    TOKEN_LEAST = 8,
    TOKEN_MOST = 32,
    MS_PER_S = 1000,
    NS_PER_MS = 1000000,
};

/* A lever under the lease. */
typedef struct held_lever {
    char name[HELD_NAME_BYTES];
    char before[VALUE_BYTES]; /* its value when the lease got it */
    char now[VALUE_BYTES];    /* what was read back when the governor had set it */
    bool is_taken;            /* somebody else changed it since */
} held_lever;

static struct {
    const hz_levers *levers;
    char token[TOKEN_MOST + 1]; /* of the governor; "": there is no lease */
    int64_t ends_ms;            /* by the monotonic clock */
    size_t count;               /* of the levers that it has */
    held_lever has[SETTINGS_MOST];
} lease;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * MS_PER_S + now.tv_nsec / NS_PER_MS;
}

bool hz_lease_is_on(void)
{
    return lease.token[0] != '\0';
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Cuts lines NAME=VALUE in two; false: the answer says what is wrong with them. */
static bool settings_read(char *lines, hz_setting *settings, size_t *count, hz_text *answer)
{
    const char *wrong = NULL;
    *count = 0;
    for (char *line; wrong == NULL && (line = strsep(&lines, "\n")) != NULL;) {
        char *equals = strchr(line, '=');
        if (*count == SETTINGS_MOST)
            wrong = "too many settings in one request";
        else if (equals == NULL || strlen(equals + 1) >= VALUE_BYTES)
            wrong = "a setting is not of the form NAME=VALUE";
        else {
            *equals = '\0';
            settings[(*count)++] = (hz_setting){line, equals + 1};
        }
    }
    if (wrong != NULL) hz_serve_refuse(answer, "request", wrong);
    return wrong == NULL;
}

void hz_lease_add_value(hz_text *answer, const char *name, const char *value)
{
    const size_t digits = strspn(value, "-0123456789");
    const bool is_first = answer->length < answer->size && answer->start[answer->length - 1] == '{';
    hz_text_add(answer, "%s\"%s\":", is_first ? "" : ",", name);
    if (value[digits] == '\0')
        hz_text_add(answer, "%s", value);
    else
        hz_text_add_quoted(answer, value);
}

static void add_values(hz_text *answer, const char *key, const hz_setting *values, size_t count)
{
    hz_text_add(answer, ",\"%s\":{", key);
    for (size_t i = 0; i < count; i++) hz_lease_add_value(answer, values[i].name, values[i].value);
    hz_text_add(answer, "}");
}

/* ---- what the lease has --------------------------------------------------------------------- */

static held_lever *held_find(const char *name)
{
    for (size_t i = 0; i < lease.count; i++)
        if (strcmp(lease.has[i].name, name) == 0) return &lease.has[i];
    return NULL;
}

/* Whoever sets a lever otherwise than by a request is noticed by the lever's value. */
static void look_at_all(void)
{
    char value[VALUE_BYTES];
    for (held_lever *each = lease.has; each < lease.has + lease.count; each++)
        each->is_taken = each->is_taken || !lease.levers->get(each->name, value, sizeof value) ||
                         strcmp(value, each->now) != 0;
}

void hz_lease_end(void)
{
    char unheard[SENTENCE_BYTES];
    look_at_all();
    for (held_lever *each = lease.has; each < lease.has + lease.count; each++) {
        const hz_setting back = {each->name, each->before};
        if (!each->is_taken) (void)lease.levers->set(&back, 1, unheard, sizeof unheard);
    }
    lease.count = 0;
    lease.token[0] = '\0';
}

int hz_lease_wait_ms(void)
{
    if (lease.token[0] == '\0') return -1;
    const int64_t left = lease.ends_ms - now_ms();
    return left > 0 ? (int)left : 0;
}

void hz_lease_end_in_time(void)
{
    if (hz_lease_wait_ms() == 0) hz_lease_end();
}

/* ---- set ------------------------------------------------------------------------------------ */

void hz_lease_set(const hz_levers *levers, char *lines, hz_text *answer)
{
    hz_setting settings[SETTINGS_MOST], values[SETTINGS_MOST] = {{0}};
    char text[SETTINGS_MOST][VALUE_BYTES] = {{0}}, sentence[SENTENCE_BYTES];
    size_t count;
    if (!settings_read(lines, settings, &count, answer)) return;
    for (size_t i = 0; i < count; i++) {
        values[i] = (hz_setting){settings[i].name, text[i]};
        (void)levers->get(settings[i].name, text[i], sizeof text[i]);
    }
    const char *refusal = levers->set(settings, count, sentence, sizeof sentence);
    if (refusal != NULL) {
        hz_serve_refuse(answer, refusal, sentence);
        return;
    }
    hz_serve_begin(answer, levers->allocator);
    add_values(answer, "before", values, count);
    for (size_t i = 0; i < count; i++) {
        held_lever *taken = held_find(settings[i].name);
        if (taken != NULL) taken->is_taken = true;
        (void)levers->get(settings[i].name, text[i], sizeof text[i]);
    }
    add_values(answer, "after", values, count);
    hz_text_add(answer, "}");
}

/* ---- govern --------------------------------------------------------------------------------- */

/* The values of what is under the lease, and the names of what was taken out of it. */
static void answer_with_lease(hz_text *answer, long seconds, bool is_new)
{
    const char *separator = "";
    hz_setting values[SETTINGS_MOST] = {{0}};
    char text[SETTINGS_MOST][VALUE_BYTES] = {{0}};
    for (size_t i = 0; i < lease.count; i++) {
        values[i] = (hz_setting){lease.has[i].name, text[i]};
        (void)lease.levers->get(lease.has[i].name, text[i], sizeof text[i]);
    }
    hz_serve_begin(answer, lease.levers->allocator);
    hz_text_add(answer, ",\"seconds\":%ld,\"began\":%s", seconds, is_new ? "true" : "false");
    add_values(answer, "values", values, lease.count);
    hz_text_add(answer, ",\"taken\":[");
    for (const held_lever *each = lease.has; each < lease.has + lease.count; each++) {
        if (!each->is_taken) continue;
        hz_text_add(answer, "%s\"%s\"", separator, each->name);
        separator = ",";
    }
    hz_text_add(answer, "]}");
}

static bool is_token(const char *text)
{
    const size_t length = strlen(text);
    return length >= TOKEN_LEAST && length <= TOKEN_MOST &&
           strspn(text, "0123456789abcdef") == length;
}

/* Takes the token, and what is not the governor's any more, out of the settings. */
static size_t settings_sift(hz_setting *settings, size_t count, const char **token)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const held_lever *known = held_find(settings[i].name);
        if (strcmp(settings[i].name, "token") == 0)
            *token = settings[i].value;
        else if (known == NULL || !known->is_taken)
            settings[kept++] = settings[i];
    }
    return kept;
}

/* Sets them, and puts under the lease what is new there. NULL: done, as with hz_levers.set. */
static const char *settings_hold(const hz_levers *levers, const hz_setting *settings, size_t count,
                                 char *sentence, size_t size)
{
    const size_t before = lease.count;
    const char *refusal = NULL;
    for (size_t i = 0; i < count; i++) {
        if (held_find(settings[i].name) != NULL) continue;
        if (lease.count == SETTINGS_MOST) {
            snprintf(sentence, size, "a lease has room for %d levers", (int)SETTINGS_MOST);
            refusal = "request";
            break;
        }
        held_lever *fresh = &lease.has[lease.count++];
        *fresh = (held_lever){.is_taken = false};
        snprintf(fresh->name, sizeof fresh->name, "%s", settings[i].name);
        (void)levers->get(fresh->name, fresh->before, sizeof fresh->before);
    }
    if (refusal == NULL && count > 0) refusal = levers->set(settings, count, sentence, size);
    if (refusal != NULL) {
        lease.count = before;
        return refusal;
    }
    for (size_t i = 0; i < count; i++) {
        held_lever *each = held_find(settings[i].name);
        if (each != NULL) (void)levers->get(each->name, each->now, sizeof each->now);
    }
    return NULL;
}

/* The lease of this token for so long; false: the answer refuses. */
static bool lease_renew(const hz_levers *levers, long seconds, char *lines, hz_text *answer)
{
    hz_setting settings[SETTINGS_MOST];
    char sentence[SENTENCE_BYTES];
    const char *token = "";
    size_t count;
    look_at_all();
    if (!settings_read(lines, settings, &count, answer)) return false;
    count = settings_sift(settings, count, &token);
    const char *refusal = NULL;
    if (!is_token(token)) {
        refusal = "request";
        snprintf(sentence, sizeof sentence, "govern needs a line token= with %d to %d hex digits",
                 (int)TOKEN_LEAST, (int)TOKEN_MOST);
    } else if (lease.token[0] != '\0' && strcmp(lease.token, token) != 0) {
        refusal = "governed";
        snprintf(sentence, sizeof sentence,
                 "another governor has the lease, until it ends it or is not heard for its time");
    } else if (seconds > 0) {
        refusal = settings_hold(levers, settings, count, sentence, sizeof sentence);
    }
    if (refusal != NULL) {
        hz_serve_refuse(answer, refusal, sentence);
        return false;
    }
    lease.levers = levers;
    snprintf(lease.token, sizeof lease.token, "%s", token);
    lease.ends_ms = now_ms() + seconds * MS_PER_S;
    return true;
}

void hz_lease_govern(const hz_levers *levers, const char *seconds, char *lines, hz_text *answer)
{
    char *end;
    const long given = strtol(seconds, &end, 10);
    const bool is_new = lease.token[0] == '\0';
    if (end == seconds || *end != '\0' || given < 0 || given > SECONDS_MOST) {
        hz_serve_refuse(answer, "request", "legal is govern 0 to govern 60, in seconds");
        return;
    }
    if (!lease_renew(levers, given, lines, answer)) return;
    const size_t count = lease.count;
    if (given == 0) {
        hz_lease_end();
        lease.count = count; /* what the answer tells of */
    }
    answer_with_lease(answer, given, is_new && given > 0);
    if (given == 0) lease.count = 0;
}
