/*
 * The functions that the linker calls instead of those in systems.def and paths.def (its option
 * --wrap), from every file but the one that defines them.
 */
#include "ledger.h"

#include "../src/internal.h"
#include "../src/os.h"
#include "wraps.h"

#pragma GCC visibility push(hidden)

#define WRAP(kind, note, result, name, parameters, arguments)                                      \
    result __real_##name parameters;                                                               \
    result __wrap_##name parameters;                                                               \
    result __wrap_##name parameters                                                                \
    {                                                                                              \
        const uint64_t since = hz_ledger_ticks();                                                  \
        result outcome = __real_##name arguments;                                                  \
        note(kind##name, since);                                                                   \
        return outcome;                                                                            \
    }
#define WRAP_VOID(kind, note, name, parameters, arguments)                                         \
    void __real_##name parameters;                                                                 \
    void __wrap_##name parameters;                                                                 \
    void __wrap_##name parameters                                                                  \
    {                                                                                              \
        const uint64_t since = hz_ledger_ticks();                                                  \
        __real_##name arguments;                                                                   \
        note(kind##name, since);                                                                   \
    }

#define HZ_LEDGER_SYSTEM(result, name, parameters, arguments)                                      \
    WRAP(HZ_LEDGER_SYSTEM_, hz_ledger_called, result, name, parameters, arguments)
#define HZ_LEDGER_SYSTEM_VOID(name, parameters, arguments)                                         \
    WRAP_VOID(HZ_LEDGER_SYSTEM_, hz_ledger_called, name, parameters, arguments)
#define HZ_LEDGER_PATH(result, name, parameters, arguments)                                        \
    WRAP(HZ_LEDGER_PATH_, hz_ledger_passed, result, name, parameters, arguments)
#define HZ_LEDGER_PATH_VOID(name, parameters, arguments)                                           \
    WRAP_VOID(HZ_LEDGER_PATH_, hz_ledger_passed, name, parameters, arguments)

#include "paths.def"
#include "systems.def"

#undef HZ_LEDGER_SYSTEM
#undef HZ_LEDGER_SYSTEM_VOID
#undef HZ_LEDGER_PATH
#undef HZ_LEDGER_PATH_VOID

#define HZ_LEDGER_SYSTEM(result, name, parameters, arguments) [HZ_LEDGER_SYSTEM_##name] = #name,
#define HZ_LEDGER_SYSTEM_VOID(name, parameters, arguments) [HZ_LEDGER_SYSTEM_##name] = #name,
#define HZ_LEDGER_PATH(result, name, parameters, arguments) [HZ_LEDGER_PATH_##name] = #name,
#define HZ_LEDGER_PATH_VOID(name, parameters, arguments) [HZ_LEDGER_PATH_##name] = #name,

const char *const hz_ledger_system_names[HZ_LEDGER_SYSTEMS] = {
#include "systems.def"
};
const char *const hz_ledger_path_names[HZ_LEDGER_PATHS] = {
#include "paths.def"
};

#pragma GCC visibility pop
