/*
 * What the linker leads through the ledger: hz's system calls, and the slow paths.
 */
#ifndef HZ_LEDGER_WRAPS_H
#define HZ_LEDGER_WRAPS_H

#include <stdatomic.h>
#include <stdint.h>

enum { HZ_LEDGER_BUCKETS = 160 }; /* four for each doubling */

/* How long something took, over all times that it was done. */
typedef struct hz_ledger_times {
    _Atomic uint64_t count;                      /* how often */
    _Atomic uint64_t ticks;                      /* how long in all */
    _Atomic uint32_t buckets[HZ_LEDGER_BUCKETS]; /* how many by duration */
} hz_ledger_times;

/* What os.h offers that makes a system call. */
typedef enum hz_ledger_system {
#define HZ_LEDGER_SYSTEM(result, name, parameters, arguments) HZ_LEDGER_SYSTEM_##name,
#define HZ_LEDGER_SYSTEM_VOID(name, parameters, arguments) HZ_LEDGER_SYSTEM_##name,
#include "systems.def"
#undef HZ_LEDGER_SYSTEM
#undef HZ_LEDGER_SYSTEM_VOID
    HZ_LEDGER_SYSTEMS
} hz_ledger_system;

/* The functions that a slow path passes through; the time of one contains those that it calls. */
typedef enum hz_ledger_path {
#define HZ_LEDGER_PATH(result, name, parameters, arguments) HZ_LEDGER_PATH_##name,
#define HZ_LEDGER_PATH_VOID(name, parameters, arguments) HZ_LEDGER_PATH_##name,
#include "paths.def"
#undef HZ_LEDGER_PATH
#undef HZ_LEDGER_PATH_VOID
    HZ_LEDGER_PATHS
} hz_ledger_path;

#pragma GCC visibility push(hidden)

extern const char *const hz_ledger_system_names[HZ_LEDGER_SYSTEMS];
extern const char *const hz_ledger_path_names[HZ_LEDGER_PATHS];

/* A system call, or a path, that began at `since` has ended. */
void hz_ledger_called(hz_ledger_system system, uint64_t since);
void hz_ledger_passed(hz_ledger_path path, uint64_t since);

#pragma GCC visibility pop

#endif
