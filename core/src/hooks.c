/*
 * What the program wants to hear of hz: its messages, and that memory has run out.
 */
#include <hz/hz.h>

#include "internal.h"
#include "os.h"

static struct {
    hz_message_hook *_Atomic message; /* NULL: stderr */
    hz_memory_hook *_Atomic memory;   /* NULL: a request that cannot be met fails at once */
} hooks;

hz_message_hook *hz_on_message(hz_message_hook *hook)
{
    return hz_atomic_swap(&hooks.message, hook);
}

hz_memory_hook *hz_on_out_of_memory(hz_memory_hook *hook)
{
    return hz_atomic_swap(&hooks.memory, hook);
}

void hz_message(const char *text, size_t length)
{
    hz_message_hook *hook = hz_atomic_get(&hooks.message);
    if (hook != NULL)
        hook(text);
    else
        hz_os_write_stderr(text, length);
}

HZ_SLOW bool hz_may_get_memory(size_t size)
{
    hz_memory_hook *hook = hz_atomic_get(&hooks.memory);
    return hook != NULL && hook(size);
}
