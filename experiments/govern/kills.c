/*
 * Kills of a governor at random times, on the lease as it is and a clock of its own: ten seconds
 * later each lever has the value of before, but for those that others have changed.
 *
 *     gcc -O2 -Icore/src -o kills experiments/govern/kills.c core/src/text.c core/src/os_call.c &&
 * ./kills 10000
 */
#include <stdint.h>
#include <time.h>

static int64_t now_ns;

static int fake_clock(clockid_t clock, struct timespec *now)
{
    (void)clock;
    now->tv_sec = now_ns / 1000000000;
    now->tv_nsec = now_ns % 1000000000;
    return 0;
}

#define clock_gettime fake_clock
#include "lease.c"

enum { LEVERS = 3, LEASE_S = 10, MS = 1000000 };

static int64_t levers[LEVERS]; /* what the allocator has now */
static bool refuses;           /* the allocator does not take the second setting of a request */

/* ---- an allocator, and the answers, which nobody reads --------------------------------------- */

static const char *set(const hz_setting *settings, size_t count, char *sentence, size_t size)
{
    if (refuses && count > 1) {
        snprintf(sentence, size, "no");
        return "refused";
    }
    for (size_t i = 0; i < count; i++)
        levers[settings[i].name[1] - '0'] = strtoll(settings[i].value, NULL, 10);
    return NULL;
}

static bool get(const char *name, char *value, size_t size)
{
    snprintf(value, size, "%lld", (long long)levers[name[1] - '0']);
    return true;
}

static const hz_levers table = {"planted", set, get};

void hz_serve_refuse(hz_text *answer, const char *word, const char *sentence)
{
    hz_text_add(answer, "%s: %s", word, sentence);
}

void hz_serve_begin(hz_text *answer, const char *allocator)
{
    hz_text_add(answer, "{\"allocator\":\"%s\"", allocator);
}

/* ---- governor, process and others ------------------------------------------------------------ */

static uint64_t state = 88172645463325252U;

static int64_t below(int64_t most)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)((state >> 11) % (uint64_t)most);
}

/* The thread that answers wakes when the lease is over, and some time later on a busy machine. */
static void pass_ms(int64_t ms)
{
    for (const int64_t until = now_ns + ms * MS; now_ns < until;) {
        const int wait_ms = hz_lease_wait_ms();
        const int64_t left = until - now_ns;
        if (wait_ms < 0 || wait_ms * (int64_t)MS > left) {
            now_ns = until;
            return;
        }
        now_ns += wait_ms * (int64_t)MS;
        hz_lease_end_in_time();
    }
}

static void request(const char *token, bool is_setting)
{
    char lines[256], room[2048];
    hz_text answer = {.start = room, .size = sizeof room};
    int length = snprintf(lines, sizeof lines, "token=%s", token);
    for (int i = 0; is_setting && i < LEVERS; i++)
        if (below(2))
            length += snprintf(lines + length, sizeof lines - (size_t)length, "\nl%d=%lld", i,
                               (long long)below(1000));
    refuses = below(10) == 0;
    hz_lease_govern(&table, "10", lines, &answer);
    refuses = false;
}

/* One life of a governor, or of two, one after the other, until a kill; false: a lever is not back.
 */
static bool killed(void)
{
    int64_t before[LEVERS];
    bool is_others[LEVERS] = {false};
    for (int i = 0; i < LEVERS; i++) before[i] = levers[i] = below(1000);
    for (int64_t lives = 1 + below(2); lives > 0; lives--) {
        const char *token = lives > 1 ? "0123456789abcdef" : "fedcba9876543210";
        for (int64_t requests = 1 + below(12); requests > 0; requests--) {
            request(token, below(2) != 0);
            pass_ms(below(3000));
            if (below(8) == 0) { /* an admin, by the allocator's own interface */
                const int64_t lever = below(LEVERS);
                levers[lever] = 1000 + below(1000);
                is_others[lever] = true;
            }
        }
    }
    pass_ms(LEASE_S * 1000);
    for (int i = 0; i < LEVERS; i++)
        if (is_others[i] ? levers[i] < 1000 : levers[i] != before[i]) return false;
    return !hz_lease_is_on();
}

int main(int count, char **words)
{
    const long runs = count > 1 ? strtol(words[1], NULL, 10) : 10000;
    long wrong = 0;
    for (long i = 0; i < runs; i++) wrong += !killed();
    printf("%ld of %ld kills left a setting behind\n", wrong, runs);
    return wrong != 0;
}
