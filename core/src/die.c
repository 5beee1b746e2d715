/*
 * What hz says of a wrong free or write, and the end of the program.
 */
#include <stdlib.h>

#include "internal.h"
#include "text.h"

enum { SAID_BYTES = 256 };

/* Works in any state of the process: it calls nothing of the C library. */
static void say_of(const char *what, const void *address)
{
    char message[SAID_BYTES], digit[] = "0";
    hz_text text = {message, sizeof message, 0};
    int shift = HZ_WORD_BITS - 4;
    hz_text_put(&text, "hz: ");
    hz_text_put(&text, what);
    hz_text_put(&text, ": 0x");
    while (shift > 0 && (uintptr_t)address >> shift == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) {
        digit[0] = "0123456789abcdef"[(uintptr_t)address >> shift & 15];
        hz_text_put(&text, digit);
    }
    hz_text_put(&text, "\n");
    hz_message(message, text.length);
}

/* A handler of SIGABRT may allocate, but the thread's heap may be half changed: so the thread gives
 * it up first. */
HZ_SLOW _Noreturn void hz_die(const char *what, const void *address)
{
    say_of(what, address);
    hz_heap_abandon();
    abort();
}

HZ_SLOW void hz_warn_once(const char *what, const void *address)
{
    static _Atomic uint32_t warned;
    if (hz_atomic_swap(&warned, 1) == 0) say_of(what, address);
}
