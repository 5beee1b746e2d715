/*
 * From the first allocation to a running allocator: the configuration, the arena, the hooks of the
 * process; and the service variables HZ_STRICT, HZ_CONFIRM, HZ_CONTROL
 * and HZ_STATS.
 *
 * A bad value, or a name that is nearly a parameter's, is named on stderr and ignored, and the
 * program runs on. If two values do not fit each other, all are ignored. Under HZ_STRICT=1, which a
 * tuner sets, the process ends with STATUS_REJECTED instead.
 */
#include <stdio.h>
#include <stdlib.h>

#include "account.h"
#include "internal.h"
#include "os.h"

enum { STATUS_REJECTED = 78, MESSAGE_BYTES = 512 };

extern char **environ;

#ifndef HZ_FROZEN
hz_config hz_cfg;
#endif
static hz_page_entry no_entry; /* the only entry before hz has started */
hz_map_t hz_map = {.entries = &no_entry};
hz_shard *hz_shards;

static struct {
    hz_lock lock;            /* guards the start */
    _Atomic uint32_t done;   /* whether hz is ready */
    _Atomic uint32_t failed; /* whether the start failed */
    bool confirm;            /* HZ_CONFIRM=1 */
    bool control;            /* HZ_CONTROL=1 */
    char stats_path[4096];   /* HZ_STATS, "" when unset; copied, as the program may change its
                                environment */
} process;

/* What the environment asks for. */
typedef struct {
    bool strict, confirm, control; /* as above */
    const char *stats_path;        /* the value of HZ_STATS, NULL when unset */
    hz_config config;
} settings;

/* ---- messages ------------------------------------------------------------------------------- */

/* If hz has started since the environment was read, that start has said it. */
static void say(const char *what, const char *why)
{
    char message[MESSAGE_BYTES];
    if (hz_atomic_peek(&process.done)) return;
    hz_text text = {message, sizeof message, 0};
    hz_text_add(&text, "hz: %s%s\n", what, why);
    if (text.length >= sizeof message) { /* it was cut off: end the line */
        text.length = sizeof message - 1;
        message[text.length - 1] = '\n';
    }
    hz_message(message, text.length);
}

/* `kept` says what the program runs on with. */
static void setting_refuse(const settings *asked, const char *what, const char *why,
                           const char *kept)
{
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s; %s", why,
             asked->strict ? "HZ_STRICT is set: giving up" : kept);
    say(what, message);
    if (asked->strict) hz_os_exit(STATUS_REJECTED);
}

/* ---- the environment ------------------------------------------------------------------------ */

/* The value of "NAME=value" if NAME is `name`, else NULL. */
static const char *value_of(const char *variable, const char *name)
{
    size_t length = strlen(name);
    return strncmp(variable, name, length) == 0 && variable[length] == '=' ? variable + length + 1
                                                                           : NULL;
}

/* HZ_STRICT=yes asks for strictness and is a wrong setting, which strictness refuses. */
static void read_switch(const settings *asked, const char *variable, const char *name, bool *is_on)
{
    const char *value = value_of(variable, name);
    if (value == NULL) return;
    const bool is_off = value[0] == '\0' || strcmp(value, "0") == 0, before = *is_on;
    *is_on = !is_off;
    if (is_off || strcmp(value, "1") == 0) return;
    setting_refuse(asked, name, " is neither 0 nor 1", "it is ignored");
    *is_on = before;
}

static void read_stats_path(settings *asked, const char *variable)
{
    const char *value = value_of(variable, "HZ_STATS");
    if (value == NULL) return;
    if (strlen(value) < sizeof process.stats_path)
        asked->stats_path = value;
    else
        setting_refuse(asked, "HZ_STATS", " is too long for a path", "it is ignored");
}

/* HZ_STRICT comes first, wherever it stands: it says what becomes of wrong values of the others. */
static void read_service_variables(settings *asked)
{
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++)
        read_switch(asked, *variable, "HZ_STRICT", &asked->strict);
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        read_switch(asked, *variable, "HZ_CONFIRM", &asked->confirm);
        read_switch(asked, *variable, "HZ_CONTROL", &asked->control);
        read_stats_path(asked, *variable);
    }
}

static const hz_param *param_of(const char *variable, size_t *index)
{
    for (*index = 0; *index < hz_param_count(); ++*index) {
        const hz_param *param = hz_param_at(*index);
        if (value_of(variable, param->env) != NULL) return param;
    }
    return NULL;
}

static void refuse_if_nearly(const settings *asked, const char *variable)
{
    char name[64], message[MESSAGE_BYTES];
    size_t length = strcspn(variable, "=");
    if (length >= sizeof name) return;
    memcpy(name, variable, length);
    name[length] = '\0';
    const hz_param *meant = hz_param_nearly(name);
    if (meant == NULL) return;
    snprintf(message, sizeof message, " is no parameter of hz; did you mean %s?", meant->env);
    setting_refuse(asked, name, message, "it is ignored");
}

/* In a frozen build the configuration is constant. */
static void set_parameter(settings *asked, const char *env, size_t index, const char *value)
{
    char message[MESSAGE_BYTES] = ": ";
    if (HZ_IS_FROZEN)
        setting_refuse(asked, env,
                       " is set, but this build of hz is frozen: parameters are constants",
                       "it is ignored");
    else if (!hz_config_set(&asked->config, index, value, message + 2, sizeof message - 2))
        setting_refuse(asked, env, message, "it is ignored");
}

static void read_parameter(settings *asked, const char *variable)
{
    size_t index;
    const hz_param *param = param_of(variable, &index);
    if (param == NULL)
        refuse_if_nearly(asked, variable);
    else
        set_parameter(asked, param->env, index, variable + strcspn(variable, "=") + 1);
}

static void read_configuration(settings *asked)
{
    char message[MESSAGE_BYTES];
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        if (strncmp(*variable, "HZ_", 3) == 0) read_parameter(asked, *variable);
    }
    if (HZ_IS_FROZEN || hz_config_check(&asked->config, message, sizeof message)) return;
    setting_refuse(asked, "", message, "all parameters of the environment are ignored");
    asked->config = hz_cfg_built;
}

/* Without a lock, as the functions that make the messages may allocate. */
static void configure(settings *asked)
{
    asked->strict = asked->confirm = asked->control = false;
    asked->stats_path = NULL;
    asked->config = hz_cfg_built;
    if (hz_os_is_privileged()) return; /* the environment may be an attacker's */
    read_service_variables(asked);
    read_configuration(asked);
}

/* ---- starting ------------------------------------------------------------------------------- */

/* One shard for every 64 CPUs, and at least one for each node: with 64 the model of
 * experiments/scale has no lock that is held for more than 0.18 of the time, and each shard more
 * costs speed and memory. */
_Static_assert(HZ_PARAM_MOST(shards) <= HZ_SHARDS_MAX, "each shard has a row in a thread's rows");
enum { SHARD_CPUS = 64 };
static uint32_t resolve_shards(uint32_t cpus, uint32_t nodes)
{
    if (hz_cfg.shards != HZ_AUTO) return (uint32_t)hz_cfg.shards;
    uint32_t shards = 1;
    while ((shards * SHARD_CPUS < cpus || shards < nodes) && shards < HZ_SHARDS_MAX) shards *= 2;
    return shards;
}

/* With two CPUs 256 MiB, which experiments/large-cache found to be enough. */
static size_t resolve_max_dirty(uint32_t cpus, uint64_t memory_bytes)
{
    enum { CPU_BYTES = 128 << 20, CPUS_LEAST = 2, MEMORY_SHARE = 16 };
    const uint64_t memory = memory_bytes / MEMORY_SHARE;
    uint64_t most = (uint64_t)(cpus > CPUS_LEAST ? cpus : CPUS_LEAST) * CPU_BYTES, power = 1;
    if (most > HZ_PARAM_MOST(max_dirty_bytes)) most = HZ_PARAM_MOST(max_dirty_bytes);
    if (most > memory) most = memory;
    while (2 * power <= most) power *= 2;
    return power;
}

/* Nodes can be told apart only where each has a shard. A process whose quota has fewer CPUs than
 * there are nodes is not spread over all of them: a pod with one CPU has one shard. Returns the
 * CPUs. */
static uint32_t resolve(void)
{
    uint64_t memory_bytes;
    const uint32_t found = hz_os_nodes(), cpus = hz_os_allowed(&memory_bytes);
    const uint32_t nodes = found < cpus ? found : cpus;
    hz_map.shards = resolve_shards(cpus, nodes);
    hz_map.nodes = nodes < hz_map.shards ? nodes : hz_map.shards;
    hz_map.max_dirty_bytes = resolve_max_dirty(cpus, memory_bytes);
    return cpus;
}

size_t hz_max_dirty_bytes(void)
{
    const int64_t live = hz_live(max_dirty_bytes);
    return live == HZ_AUTO ? hz_map.max_dirty_bytes : (size_t)live;
}

static void draw_keys(void)
{
    hz_os_random(hz_map.keys, sizeof hz_map.keys);
    for (uint32_t class_ = 0; class_ < HZ_CLASS_NUMBERS; class_++)
        hz_map.keys[class_] |= HZ_KEY_BITS;
}

static bool start_once(const settings *asked)
{
    hz_cfg_put(&asked->config);
    process.confirm = asked->confirm;
    process.control = asked->control;
    if (asked->stats_path != NULL) (void)strcpy(process.stats_path, asked->stats_path);
    const uint32_t cpus = resolve();
    hz_shards = hz_arena_make() ? hz_meta_alloc(hz_map.shards * sizeof(hz_shard)) : NULL;
    if (hz_shards == NULL) return false;
    draw_keys();
    hz_rows_start();
    hz_fast_path_open();
    hz_heap_start(cpus);
    return true;
}

/* What comes before the lock may allocate, and so start hz: then this start finds it done. */
HZ_SLOW static bool start_unless_done(void)
{
    settings asked;
    if (hz_atomic_peek(&process.failed)) return false;
    hz_os_start();
    hz_fork_start();
    hz_heap_prepare();
    configure(&asked);
    hz_lock_take(&process.lock);
    if (!hz_atomic_peek(&process.done) && !hz_atomic_peek(&process.failed))
        hz_atomic_put(start_once(&asked) ? &process.done : &process.failed, 1);
    hz_lock_release(&process.lock);
    return hz_atomic_peek(&process.done);
}

bool hz_start(void)
{
    return HZ_LIKELY(hz_atomic_get(&process.done)) || start_unless_done();
}

/* If another thread was starting hz when the process forked, the child starts it again. */
void hz_start_after_fork(void)
{
    (void)hz_lock_inherit(&process.lock);
}

bool hz_is_controlled(void)
{
    return process.control;
}

static void confirm(void)
{
    char line[4096];
    hz_text text = {line, sizeof line, 0};
    hz_text_add(&text, "HZ_CONFIRM {\"schema\":%d,\"pid\":%u,\"version\":\"%s\",\"frozen\":%s,",
                HZ_CONFIG_SCHEMA_VERSION, hz_os_pid(), HZ_VERSION, HZ_IS_FROZEN ? "true" : "false");
    hz_text_add_config(&text);
    hz_text_add(&text, "}\n");
    hz_os_write_stderr(line, text.length);
}

__attribute__((constructor)) static void process_begins(void)
{
    if (!hz_start()) return;
    if (process.confirm) confirm();
    if (process.control) hz_control_start();
    hz_background_start();
}

__attribute__((destructor)) static void process_ends(void)
{
    if (process.stats_path[0] != '\0') hz_stats_dump(process.stats_path);
}
