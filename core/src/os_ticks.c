/*
 * The processor's counter: a clock that is never a system call, for what only compares times. The
 * kernel's fine clock is one wherever it does not trust that counter, as on many virtual machines.
 *
 * A virtual machine may move to another host, and processors may differ: then a time is wrong once.
 */
#include "atomic.h"
#include "os.h"

enum {
    SHIFT = 4,            /* so that a second has less than 2^32 ticks anywhere */
    USUAL_OF_MS = 156250, /* of the 2.5 GHz that most x86 count with; until it was measured */
    LEAST_MS = 64,        /* a measurement takes so long at least: the coarse clock has steps, */
    WHOLE_MS = 4096,      /* and the later ones so long */
};

uint64_t hz_os_ticks(void)
{
    return hz_os_counter() >> SHIFT;
}

static _Atomic uint32_t of_ms = USUAL_OF_MS;

uint32_t hz_os_ticks_of_ms(void)
{
    return hz_atomic_peek(&of_ms);
}

/* Threads that come at once may mix their times, which are the same but for a moment. */
uint32_t hz_os_ticks_settle(void)
{
    static _Atomic uint64_t from_ticks;
    static _Atomic uint32_t from_ms;
    const uint64_t ticks = hz_os_ticks(), passed = ticks - hz_atomic_peek(&from_ticks);
    const uint32_t now_ms = hz_os_now_ms(), passed_ms = now_ms - hz_atomic_peek(&from_ms);
    const bool is_first = passed == ticks, is_measured = hz_os_ticks_of_ms() != USUAL_OF_MS;
    if (!is_first && passed_ms < (is_measured ? WHOLE_MS : LEAST_MS)) return now_ms;
    if (!is_first && passed / passed_ms - 1 < UINT32_MAX / 1000)
        hz_atomic_poke(&of_ms, (uint32_t)(passed / passed_ms));
    hz_atomic_poke(&from_ms, now_ms);
    hz_atomic_poke(&from_ticks, ticks);
    return now_ms;
}
