/*
 * What Python sees of hz/params.h. The compiler checks every line of this against the header when _core is built;
 * `...` leaves to it what Python has no business knowing (values, sizes, the order of fields).
 */
#define HZ_CONFIG_SCHEMA_VERSION ...

typedef enum { HZ_KIND_INT, HZ_KIND_ENUM, ... } hz_param_kind;
typedef enum { HZ_SCALE_LINEAR, HZ_SCALE_LOG, HZ_SCALE_POW2, ... } hz_param_scale;

typedef struct {
    const char *name, *env, *macro;
    hz_param_kind kind;
    const char *default_text;
    int64_t low, high;
    hz_param_scale scale;
    const char *unit, *choices;
    bool may_be_auto;
    const char *doc;
    bool is_experimental, is_live;
    ...;
} hz_param;

typedef struct { ...; } hz_config;

size_t hz_param_count(void);
const hz_param *hz_param_at(size_t index);
size_t hz_param_find(const char *name);
const hz_param *hz_param_nearly(const char *env);
void hz_config_default(hz_config *config);
int64_t hz_config_get(const hz_config *config, size_t index);
bool hz_config_set(hz_config *config, size_t index, const char *text, char *message, size_t size);
void hz_config_text(const hz_config *config, size_t index, char *text, size_t size);
bool hz_config_check(const hz_config *config, char *message, size_t size);
