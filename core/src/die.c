/*
 * What hz says of a wrong free or write, and the end of the program.
 *
 * A block that is freed although it has its seal was freed twice, or the program has stored there
 * what it once read from the free block. Only a search of the places where free blocks wait can
 * tell. If another thread moves the block from one place to another meanwhile, the search may miss
 * it; then the second free is noticed when the block would be handed out.
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

void hz_leave_out(const void *block)
{
    if (hz_is_unsealed(block)) hz_die("a block was freed twice", block);
    if (hz_is_hardened()) hz_die("a block was written to after it had been freed", block);
    hz_count(HZ_STAT_blocks_spoiled, 1);
    hz_warn_once("a block was written to after it had been freed; it stays out of use", block);
}

bool hz_is_parked(const void *block, uint32_t class_)
{
    const uint32_t shard = hz_info_at(block)->shard;
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        if (hz_magazine_holds(heap, class_, block) || hz_remote_holds(heap, block)) return true;
    }
    return hz_inbox_holds(shard, block) || hz_depot_holds(shard, class_, block) ||
           hz_span_holds(shard, class_, block);
}
