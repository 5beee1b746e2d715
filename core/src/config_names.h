/*
 * Gives the macros of an older hz_config.h their present names.
 *
 * There is a paragraph for each HZ_ALIAS and HZ_REMOVED of params.def, as the preprocessor cannot
 * make it from the table.
 */
#ifndef HZ_CONFIG_NAMES_H
#define HZ_CONFIG_NAMES_H

#ifdef HZ_CONFIG_BACKGROUND_REFILL_US
#pragma message("HZ_CONFIG_BACKGROUND_REFILL_US is called HZ_CONFIG_BACKGROUND_PERIOD_US now")
#ifndef HZ_CONFIG_BACKGROUND_PERIOD_US
#define HZ_CONFIG_BACKGROUND_PERIOD_US HZ_CONFIG_BACKGROUND_REFILL_US
#elif HZ_CONFIG_BACKGROUND_PERIOD_US != HZ_CONFIG_BACKGROUND_REFILL_US
#error "HZ_CONFIG_BACKGROUND_REFILL_US and HZ_CONFIG_BACKGROUND_PERIOD_US disagree; keep the second"
#endif
#endif

#ifdef HZ_CONFIG_PURGE_DELAY_MS
#pragma message("HZ_CONFIG_PURGE_DELAY_MS is called HZ_CONFIG_DECAY_MS now")
#ifndef HZ_CONFIG_DECAY_MS
#define HZ_CONFIG_DECAY_MS HZ_CONFIG_PURGE_DELAY_MS
#elif HZ_CONFIG_DECAY_MS != HZ_CONFIG_PURGE_DELAY_MS
#error "HZ_CONFIG_PURGE_DELAY_MS and HZ_CONFIG_DECAY_MS disagree; keep the second"
#endif
#endif

#ifdef HZ_CONFIG_LARGE_CACHE_BYTES
#pragma message("HZ_CONFIG_LARGE_CACHE_BYTES is called HZ_CONFIG_MAX_DIRTY_BYTES now")
#ifndef HZ_CONFIG_MAX_DIRTY_BYTES
#define HZ_CONFIG_MAX_DIRTY_BYTES HZ_CONFIG_LARGE_CACHE_BYTES
#elif HZ_CONFIG_MAX_DIRTY_BYTES != HZ_CONFIG_LARGE_CACHE_BYTES
#error "HZ_CONFIG_LARGE_CACHE_BYTES and HZ_CONFIG_MAX_DIRTY_BYTES disagree; keep the second"
#endif
#endif

#ifdef HZ_CONFIG_DEPOT_BYTES
#pragma message("HZ_CONFIG_DEPOT_BYTES is ignored: hz has no such parameter any more")
#endif

#endif
