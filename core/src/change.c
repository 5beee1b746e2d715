/*
 * Parameters of a running process: hz_set and hz_get.
 *
 * Only an HZ_LIVE_INT of params.def may change, as the code that reads one takes any legal value at
 * any time. The others decide how large an array is, or where a block lies. A change is judged as a
 * whole configuration and stored value by value; any mixture of old and new ones is legal, too, as
 * hz_config_check relates a live parameter to fixed ones only.
 */
#include <stdio.h>

#include "account.h"
#include "internal.h"

/* Guards a change, so that two are not judged together. */
static hz_lock changing;

/* ---- reading -------------------------------------------------------------------------------- */

/* Value by value, as another thread may change one. */
static void config_read(hz_config *config)
{
    for (size_t i = 0; i < hz_param_count(); i++)
        ((int64_t *)(void *)config)[i] = hz_plain_peek((const int64_t *)(const void *)&hz_cfg + i);
}

void hz_config_in_effect(hz_config *config)
{
    config_read(config);
    if (config->shards == HZ_AUTO) config->shards = hz_map.shards;
    if (config->max_dirty_bytes == HZ_AUTO)
        config->max_dirty_bytes = (int64_t)hz_map.max_dirty_bytes;
}

/* ---- which parameter is meant --------------------------------------------------------------- */

/* The index of the row called `name`. Where there is none, says so. */
static hz_set_status find(const char *name, size_t *index, char *message, size_t size)
{
    *index = hz_param_find(name);
    if (*index < hz_param_count()) return HZ_SET_DONE;
    snprintf(message, size,
             "%.60s is no parameter of hz; `hztune params --live` lists those that may change",
             name);
    return HZ_SET_UNKNOWN;
}

hz_set_status hz_get(const char *name, char *text, size_t size)
{
    hz_config config;
    size_t index;
    const hz_set_status found = find(name, &index, text, size);
    if (found != HZ_SET_DONE) return found;
    hz_config_in_effect(&config);
    hz_config_text(&config, index, text, size);
    return HZ_SET_DONE;
}

bool hz_live_text(const char *name, char *text, size_t size)
{
    hz_config config;
    const size_t index = hz_param_find(name);
    if (index == hz_param_count() || !hz_param_at(index)->is_live) return false;
    config_read(&config);
    hz_config_text(&config, index, text, size);
    return true;
}

/* ---- changing ------------------------------------------------------------------------------- */

static hz_set_status refuse_fixed(const hz_param *param, char *message, size_t size)
{
    if (HZ_IS_FROZEN)
        snprintf(message, size, "%s is a constant: this build of hz is frozen", param->name);
    else
        snprintf(message, size,
                 "%s cannot change while a process runs; start the process with %s=VALUE",
                 param->name, param->env);
    return HZ_SET_FIXED;
}

/* Puts one setting into a draft. */
static hz_set_status draft_set(hz_config *draft, const hz_setting *setting, char *message,
                               size_t size)
{
    size_t index;
    const hz_set_status found = find(setting->name, &index, message, size);
    if (found != HZ_SET_DONE) return found;
    const hz_param *param = hz_param_at(index);
    if (HZ_IS_FROZEN || !param->is_live) return refuse_fixed(param, message, size);
    return hz_config_set(draft, index, setting->value, message, size) ? HZ_SET_DONE
                                                                      : HZ_SET_ILLEGAL;
}

static hz_set_status draft_make(hz_config *draft, const hz_setting *settings, size_t count,
                                char *message, size_t size)
{
    config_read(draft);
    for (size_t i = 0; i < count; i++) {
        const hz_set_status status = draft_set(draft, &settings[i], message, size);
        if (status != HZ_SET_DONE) return status;
    }
    return hz_config_check(draft, message, size) ? HZ_SET_DONE : HZ_SET_UNFIT;
}

static void draft_store(const hz_config *draft)
{
    for (size_t i = 0; i < hz_param_count(); i++) {
        if (hz_param_at(i)->is_live) hz_live_put(i, hz_config_get(draft, i));
    }
}

hz_set_status hz_set_all(const hz_setting *settings, size_t count, char *message, size_t size)
{
    hz_config draft;
    if (!hz_start()) {
        snprintf(message, size, "hz could not start in this process: there was no memory");
        return HZ_SET_NOT_RUNNING;
    }
    hz_lock_take(&changing);
    const hz_set_status status = draft_make(&draft, settings, count, message, size);
    if (status == HZ_SET_DONE) draft_store(&draft);
    hz_lock_release(&changing);
    if (status == HZ_SET_DONE) hz_background_start();
    return status;
}

hz_set_status hz_set(const char *name, const char *value, char *message, size_t size)
{
    const hz_setting setting = {name, value};
    return hz_set_all(&setting, 1, message, size);
}

void hz_change_after_fork(void)
{
    (void)hz_lock_inherit(&changing);
}
