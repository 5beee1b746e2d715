/*
 * A program with a malloc of its own, before which no library can be preloaded, makes a thread and
 * prints how many it has then.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 1 << 24, ALIGN = 16 };

static _Alignas(ALIGN) char memory[BYTES];
static atomic_size_t used;

void *malloc(size_t size)
{
    const size_t whole = (size + ALIGN - 1) / ALIGN * ALIGN;
    const size_t at = atomic_fetch_add(&used, whole + ALIGN);
    if (at + whole + ALIGN > BYTES) abort();
    memcpy(memory + at, &size, sizeof size);
    return memory + at + ALIGN;
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
    size_t old = 0;
    void *made = malloc(size);
    if (block != NULL) memcpy(&old, (char *)block - ALIGN, sizeof old);
    return block != NULL ? memcpy(made, block, old < size ? old : size) : made;
}

static void *wait_for_main(void *gate)
{
    (void)pthread_barrier_wait(gate);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    pthread_barrier_t gate;
    int threads = 0;
    (void)pthread_barrier_init(&gate, NULL, 2);
    if (pthread_create(&thread, NULL, wait_for_main, &gate) != 0) return 1;
    DIR *all = opendir("/proc/self/task");
    if (all == NULL) return 1;
    for (const struct dirent *each; (each = readdir(all)) != NULL;)
        threads += each->d_name[0] != '.';
    (void)closedir(all);
    (void)printf("%d\n", threads);
    (void)pthread_barrier_wait(&gate);
    return pthread_join(thread, NULL);
}
