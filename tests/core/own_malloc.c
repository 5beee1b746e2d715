/*
 * A program with a malloc of its own, before which no library can be preloaded, makes a thread and
 * prints how many it has then.
 */
#include "check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BYTES = 1 << 24, ALIGN = 16 };

static _Alignas(ALIGN) char memory[BYTES];
static atomic_size_t used;

void *malloc(size_t size)
{
    const size_t at = atomic_fetch_add(&used, (size + ALIGN - 1) / ALIGN * ALIGN);
    if (at + size > BYTES) abort();
    return memory + at;
}

void free(void *block)
{
    (void)block;
}

void *calloc(size_t count, size_t size)
{
    return malloc(count * size); /* never used before, so it reads as zero */
}

void *realloc(void *block, size_t size)
{
    (void)block, (void)size;
    abort();
}

static void *wait_for_ever(void *unused)
{
    (void)pause();
    return unused;
}

int main(void)
{
    (void)thread_start(wait_for_ever, NULL);
    (void)printf("%zu\n", threads_now());
    return 0;
}
