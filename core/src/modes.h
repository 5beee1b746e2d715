/*
 * The modes of a process that change what a free or an allocation does.
 */
#ifndef HZ_MODES_H
#define HZ_MODES_H

#include "compiler.h"
#include "config.h"

HZ_FAST bool hz_is_hardened(void)
{
    return hz_cfg.hardening != HZ_HARDENING_OFF;
}

/* Whether blocks are fenced and wait in quarantine. */
HZ_FAST bool hz_is_fenced(void)
{
    return hz_cfg.hardening == HZ_HARDENING_FULL;
}

/* Whether frees are deferred: not in the modes that check each free at the call. */
HZ_FAST bool hz_is_deferring(void)
{
    return hz_cfg.defer_free > 0 && hz_cfg.double_free == HZ_DOUBLE_FREE_AT_REUSE &&
           hz_cfg.hardening == HZ_HARDENING_OFF;
}

#endif
