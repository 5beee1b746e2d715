/*
 * A loop that does nothing but malloc and free of 16 to 271 bytes: `calls CALLS [THREADS]`, so many
 * calls in each thread.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum { LIVE = 256, THREADS_MAX = 64 };

static long calls;

static void *run(void *seed)
{
    static __thread void *blocks[LIVE];
    uint64_t state = (uintptr_t)seed;
    for (long i = 0; i < calls / 2; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        free(blocks[state >> 56]);
        blocks[state >> 56] = malloc(16 + (state >> 40) % 256);
    }
    for (int i = 0; i < LIVE; i++) free(blocks[i]);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS_MAX];
    const int count = argc > 2 ? atoi(argv[2]) : 1;
    if (argc < 2 || count < 1 || count > THREADS_MAX) return 2;
    calls = atol(argv[1]);
    if (count == 1) {
        run((void *)1);
        return 0;
    }
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)(i + 1)) != 0) return 1;
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    return 0;
}
