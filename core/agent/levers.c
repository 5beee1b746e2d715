/*
 * What may change in a process while it runs, by the names that hztune's parameters have: a profile
 * holds settings for the start, and these are the ones that still act later. What an allocator
 * keeps, but reads at its start alone, is no lever: google/tcmalloc's cache for each CPU, glibc's
 * number of arenas, the cache that a thread of jemalloc has.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent.h"

enum {
    TEXT_BYTES = 32,
    CTL_BYTES = 64,
    LEVERS_MOST = 32,
    ARENAS_MOST = 4095, /* of jemalloc */
    PERCENT = 100,
    AUTO = -2, /* glibc's thresholds, while they adapt */
};

typedef struct agent_lever agent_lever;

struct agent_lever {
    const char *allocator;
    const char *name;    /* as hztune has it */
    int64_t least, most; /* what is legal */
    bool is_switch;      /* its values are the words false and true */
    const char *key;     /* what the allocator calls it */
    int number;          /* the same for mimalloc or mallopt; which of jemalloc's two decays */
    int builds;          /* of mimalloc that have it so */
    bool (*get)(const agent_lever *lever, int64_t *value); /* false: this process has none */
    bool (*set)(const agent_lever *lever, int64_t value);  /* false: the allocator refuses */
};

/* ---- jemalloc ------------------------------------------------------------------------------- */

static bool jemalloc_get(const agent_lever *lever, int64_t *value)
{
    *value = 0;
    return jemalloc_find() != NULL &&
           jemalloc_read(lever->key, value, lever->is_switch ? sizeof(bool) : sizeof *value);
}

static bool jemalloc_write(const char *name, int64_t value, size_t size)
{
    return jemalloc_find()(name, NULL, NULL, &value, size) == 0;
}

static bool jemalloc_set(const agent_lever *lever, int64_t value)
{
    return jemalloc_write(lever->key, value, lever->is_switch ? sizeof(bool) : sizeof value);
}

/* For coming arenas, and for those that jemalloc spreads threads over. An arena that was ever seen
 * with a value of its own keeps it, and so does the one behind them, which is for large blocks. */
static bool jemalloc_set_decay(const agent_lever *lever, int64_t value)
{
    static bool has_own[2][ARENAS_MOST];
    int64_t before, own;
    unsigned count = 0;
    char name[CTL_BYTES];
    if (!jemalloc_get(lever, &before) || !jemalloc_set(lever, value)) return false;
    (void)jemalloc_read("opt.narenas", &count, sizeof count);
    for (unsigned i = 0; i < count && i < ARENAS_MOST; i++) {
        bool *is_own = &has_own[lever->number][i];
        snprintf(name, sizeof name, "arena.%u.%s", i, lever->name);
        if (!jemalloc_read(name, &own, sizeof own)) continue;
        *is_own = *is_own || own != before;
        if (!*is_own) (void)jemalloc_write(name, value, sizeof value);
    }
    return true;
}

/* ---- mimalloc ------------------------------------------------------------------------------- */

/* Builds in which an option has the same number and meaning. */
enum { MI_NONE, MI_DECOMMITS, MI_PURGES };

static int mimalloc_builds(void)
{
    static const struct {
        int first, before; /* versions */
        int builds;
    } known[] = {
        {10802, 11000, MI_PURGES},
        {20006, 20102, MI_DECOMMITS},
        {20102, 20500, MI_PURGES},
        {30000, 30500, MI_PURGES},
    };
    const int version = mimalloc_version();
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (version >= known[i].first && version < known[i].before) return known[i].builds;
    return MI_NONE;
}

static bool mimalloc_get(const agent_lever *lever, int64_t *value)
{
    long (*get)(int option);
    if (!FIND(get, lever->key) || mimalloc_builds() != lever->builds) return false;
    *value = get(lever->number);
    return true;
}

static bool mimalloc_set(const agent_lever *lever, int64_t value)
{
    void (*set)(int option, long value);
    if (!FIND(set, "mi_option_set")) return false;
    set(lever->number, (long)value);
    return true;
}

/* ---- tcmalloc (gperftools) ------------------------------------------------------------------ */

static bool tcmalloc_get(const agent_lever *lever, int64_t *value)
{
    int (*property)(const char *name, size_t *value);
    size_t found;
    if (!FIND(property, "MallocExtension_GetNumericProperty") || !property(lever->key, &found))
        return false;
    *value = (int64_t)found;
    return true;
}

static bool tcmalloc_set(const agent_lever *lever, int64_t value)
{
    int (*property)(const char *name, size_t value);
    return FIND(property, "MallocExtension_SetNumericProperty") &&
           property(lever->key, (size_t)value) != 0;
}

/* Before gperftools 2.16 only C++ has the rate, in a member that makes no use of its object. */
static bool tcmalloc_get_rate(const agent_lever *lever, int64_t *value)
{
    double (*get)(const void *unused);
    const bool is_there = FIND(get, "_ZN22TCMallocImplementation20GetMemoryReleaseRateEv") ||
                          FIND(get, "MallocExtension_GetMemoryReleaseRate");
    if (!is_there || function_named(lever->key) == NULL) return false;
    *value = (int64_t)(get(NULL) * PERCENT + 0.5);
    return true;
}

static bool tcmalloc_set_rate(const agent_lever *lever, int64_t value)
{
    void (*member)(const void *unused, double rate);
    void (*function)(double rate);
    (void)lever;
    if (FIND(function, "MallocExtension_SetMemoryReleaseRate"))
        function((double)value / PERCENT);
    else if (FIND(member, "_ZN22TCMallocImplementation20SetMemoryReleaseRateEd"))
        member(NULL, (double)value / PERCENT);
    else
        return false;
    return true;
}

/* ---- google/tcmalloc ------------------------------------------------------------------------ */

static bool google_get(const agent_lever *lever, int64_t *value)
{
    size_t (*rate)(void);
    if (!FIND(rate, lever->key)) return false;
    *value = (int64_t)rate();
    return true;
}

static void *google_work(void *unused)
{
    void (*work)(void);
    if (FIND(work, "MallocExtension_Internal_ProcessBackgroundActions")) work();
    return unused;
}

/* A thread has to do it. One that was started stays, and returns nothing at a rate of 0. Where the
 * rate is above 0 already, the program has one. */
static bool google_set(const agent_lever *lever, int64_t value)
{
    static bool has_thread;
    int64_t before;
    pthread_t thread;
    void (*set)(size_t bytes_per_s);
    if (!FIND(set, "MallocExtension_Internal_SetBackgroundReleaseRate") ||
        !google_get(lever, &before))
        return false;
    has_thread = has_thread || before > 0;
    if (!has_thread && value > 0) {
        if (pthread_create(&thread, NULL, google_work, NULL) != 0) return false;
        (void)pthread_detach(thread);
        has_thread = true;
    }
    set((size_t)value);
    return true;
}

/* ---- glibc ---------------------------------------------------------------------------------- */

enum { GLIBC_DEFAULT = 128 << 10 }; /* of each, where it does not adapt */

/* glibc does not tell these values: they are what was asked for at the start and set since. One
 * that is set ends the adapting of all, for good. */
static struct {
    const char *tunable, *variable; /* how it is asked for */
    int64_t value;
} glibc_values[] = {
    {"glibc.malloc.trim_threshold=", "MALLOC_TRIM_THRESHOLD_", GLIBC_DEFAULT},
    {"glibc.malloc.top_pad=", "MALLOC_TOP_PAD_", GLIBC_DEFAULT},
    {"glibc.malloc.mmap_threshold=", "MALLOC_MMAP_THRESHOLD_", GLIBC_DEFAULT},
    {"glibc.malloc.mmap_max=", "MALLOC_MMAP_MAX_", GLIBC_DEFAULT},
};

static bool glibc_adapts = true;

void agent_levers_begin(void)
{
    const size_t count = sizeof glibc_values / sizeof glibc_values[0];
    const char *tunables = getenv("GLIBC_TUNABLES");
    for (size_t i = 0; i < count; i++) {
        const char *text = getenv(glibc_values[i].variable);
        const char *found = tunables != NULL ? strstr(tunables, glibc_values[i].tunable) : NULL;
        if (found != NULL) text = found + strlen(glibc_values[i].tunable);
        if (text == NULL) continue;
        glibc_values[i].value = strtoll(text, NULL, 0);
        glibc_adapts = false;
    }
}

static int64_t *glibc_value(const agent_lever *lever)
{
    size_t i = 0;
    while (strcmp(glibc_values[i].variable, lever->key) != 0) i++;
    return &glibc_values[i].value;
}

static bool glibc_get(const agent_lever *lever, int64_t *value)
{
    *value = glibc_adapts ? AUTO : *glibc_value(lever);
    return is_on_glibc();
}

static bool glibc_set(const agent_lever *lever, int64_t value)
{
    int (*option)(int number, int value);
    if (value == AUTO && glibc_adapts) return true;
    const int64_t wanted = value == AUTO ? GLIBC_DEFAULT : value;
    if (!FIND(option, "mallopt") || option(lever->number, wanted > INT_MAX ? -1 : (int)wanted) == 0)
        return false;
    *glibc_value(lever) = wanted;
    glibc_adapts = false;
    return true;
}

/* ---- all levers ----------------------------------------------------------------------------- */

#define JEMALLOC "jemalloc", .get = jemalloc_get
#define MIMALLOC "mimalloc", .get = mimalloc_get, .set = mimalloc_set, .key = "mi_option_get"
#define TCMALLOC "tcmalloc", .get = tcmalloc_get, .set = tcmalloc_set
#define GLIBC "glibc", .get = glibc_get, .set = glibc_set

/* clang-format off */
static const agent_lever levers[] = {
    {JEMALLOC, .name = "dirty_decay_ms", .key = "arenas.dirty_decay_ms", .set = jemalloc_set_decay,
     .least = -1, .most = 18446744072000},
    {JEMALLOC, .name = "muzzy_decay_ms", .key = "arenas.muzzy_decay_ms", .set = jemalloc_set_decay,
     .number = 1, .least = -1, .most = 18446744072000},
    {JEMALLOC, .name = "max_background_threads", .key = "max_background_threads",
     .set = jemalloc_set, .least = 1, .most = 4095},
    {JEMALLOC, .name = "background_thread", .key = "background_thread", .set = jemalloc_set,
     .most = 1, .is_switch = true},
    {MIMALLOC, .name = "purge_delay", .number = 15, .builds = MI_DECOMMITS, .most = INT_MAX},
    {MIMALLOC, .name = "purge_delay", .number = 15, .builds = MI_PURGES, .least = -1,
     .most = INT_MAX},
    {MIMALLOC, .name = "purge_decommits", .number = 5, .builds = MI_PURGES, .most = 1},
    {MIMALLOC, .name = "arena_purge_mult", .number = 24, .builds = MI_PURGES, .most = 1000},
    {TCMALLOC, .name = "max_total_thread_cache_bytes",
     .key = "tcmalloc.max_total_thread_cache_bytes", .least = 524288, .most = 1073741824},
    {TCMALLOC, .name = "aggressive_decommit", .key = "tcmalloc.aggressive_memory_decommit",
     .most = 1, .is_switch = true},
    {"tcmalloc", .name = "release_rate_percent", .key = "MallocExtension_GetNumericProperty",
     .get = tcmalloc_get_rate, .set = tcmalloc_set_rate, .most = INT_MAX},
    {"google_tcmalloc", .name = "background_release_rate",
     .key = "MallocExtension_Internal_GetBackgroundReleaseRate", .get = google_get,
     .set = google_set, .most = 1099511627776},
    {GLIBC, .name = "trim_threshold", .key = "MALLOC_TRIM_THRESHOLD_", .number = M_TRIM_THRESHOLD,
     .least = -1, .most = INT64_MAX},
    {GLIBC, .name = "top_pad", .key = "MALLOC_TOP_PAD_", .number = M_TOP_PAD, .most = INT_MAX},
    {GLIBC, .name = "mmap_threshold", .key = "MALLOC_MMAP_THRESHOLD_", .number = M_MMAP_THRESHOLD,
     .most = INT_MAX},
};
/* clang-format on */

enum { LEVERS = sizeof levers / sizeof levers[0] };

static const agent_lever *lever_find(const char *name, int64_t *value)
{
    for (size_t i = 0; i < LEVERS; i++)
        if (strcmp(levers[i].name, name) == 0 && levers[i].get(&levers[i], value))
            return &levers[i];
    return NULL;
}

static void value_write(const agent_lever *lever, int64_t value, char *text, size_t size)
{
    if (lever->is_switch)
        snprintf(text, size, "%s", value != 0 ? "true" : "false");
    else if (lever->get == glibc_get && value == AUTO)
        snprintf(text, size, "auto");
    else
        snprintf(text, size, "%" PRId64, value);
}

static bool value_read(const agent_lever *lever, const char *text, int64_t *value)
{
    char *end;
    if (lever->is_switch) {
        *value = strcmp(text, "true") == 0;
        return *value != 0 || strcmp(text, "false") == 0;
    }
    if (lever->get == glibc_get && strcmp(text, "auto") == 0) {
        *value = AUTO;
        return true;
    }
    errno = 0;
    *value = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && *value <= lever->most &&
           *value >= lever->least;
}

static const char *refuse_unknown(const char *name, char *sentence, size_t size)
{
    hz_text text = {sentence, size, 0};
    const char *separator = "legal are ";
    int64_t value;
    hz_text_add(&text, "%.60s cannot change in this process; ", name);
    for (size_t i = 0; i < LEVERS; i++) {
        if (!levers[i].get(&levers[i], &value)) continue;
        hz_text_add(&text, "%s%s", separator, levers[i].name);
        separator = ", ";
    }
    if (separator[0] == 'l') hz_text_add(&text, "nothing can");
    return "unknown";
}

static const char *refuse_illegal(const agent_lever *lever, const char *value, char *sentence,
                                  size_t size)
{
    if (lever->is_switch)
        snprintf(sentence, size, "%s=%.60s: legal is true or false", lever->name, value);
    else
        snprintf(sentence, size, "%s=%.60s: legal is a whole number from %" PRId64 " to %" PRId64,
                 lever->name, value, lever->least, lever->most);
    return "illegal";
}

/* If the allocator refuses one, those before it get their values back. */
static const char *agent_set(const hz_setting *settings, size_t count, char *sentence, size_t size)
{
    const agent_lever *chosen[LEVERS_MOST];
    int64_t before[LEVERS_MOST], wanted[LEVERS_MOST];
    size_t i;
    for (i = 0; i < count; i++) {
        chosen[i] = lever_find(settings[i].name, &before[i]);
        if (chosen[i] == NULL) return refuse_unknown(settings[i].name, sentence, size);
        if (!value_read(chosen[i], settings[i].value, &wanted[i]))
            return refuse_illegal(chosen[i], settings[i].value, sentence, size);
    }
    for (i = 0; i < count && chosen[i]->set(chosen[i], wanted[i]); i++) continue;
    if (i == count) return NULL;
    snprintf(sentence, size, "%s refuses %s=%.60s, and nothing was changed", chosen[i]->allocator,
             settings[i].name, settings[i].value);
    while (i-- > 0) (void)chosen[i]->set(chosen[i], before[i]);
    return "illegal";
}

static bool agent_get(const char *name, char *value, size_t size)
{
    int64_t found;
    const agent_lever *lever = lever_find(name, &found);
    if (lever != NULL) value_write(lever, found, value, size);
    return lever != NULL;
}

const hz_levers agent_levers = {"agent", agent_set, agent_get};

void agent_add_levers(hz_text *answer, const char *allocator)
{
    char text[TEXT_BYTES];
    int64_t value;
    hz_text_add(answer, ",\"levers\":{");
    for (size_t i = 0; i < LEVERS; i++) {
        if (strcmp(levers[i].allocator, allocator) != 0 || !levers[i].get(&levers[i], &value))
            continue;
        value_write(&levers[i], value, text, sizeof text);
        hz_lease_add_value(answer, levers[i].name, text);
    }
    hz_text_add(answer, "}");
}
