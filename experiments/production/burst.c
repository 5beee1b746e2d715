/*
 * Rounds of a burst and a rest: some thousands of blocks of random sizes, of which random ones stay
 * until the next burst. What it keeps at rest scatters from run to run, as that of a real program.
 *
 *   burst ROUNDS MORE LEAK   keeps MORE percent beyond that, and LEAK KiB more in each round
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 20000, STAY = 16, EXTRA_BYTES = 300 };

static void *filled(size_t bytes)
{
    return memset(malloc(bytes), 1, bytes);
}

int main(int argc, char **argv)
{
    static void *blocks[BLOCKS];
    struct timespec now;
    const int rounds = argc > 1 ? atoi(argv[1]) : 1;
    const int more = argc > 2 ? atoi(argv[2]) : 0;
    const int leak_kb = argc > 3 ? atoi(argv[3]) : 0;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    srand((unsigned)(now.tv_nsec ^ getpid()));
    char *steady = filled((size_t)8 << 20);
    char *extra = filled(1 + (size_t)more * (((size_t)8 << 20) + (size_t)2500 * EXTRA_BYTES) / 100);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            free(blocks[i]);
            blocks[i] = filled(16 + (size_t)rand() % 1000);
        }
        for (int i = 0; i < BLOCKS; i++) {
            if (rand() % STAY == 0) continue;
            free(blocks[i]);
            blocks[i] = NULL;
        }
        if (leak_kb > 0) (void)filled((size_t)leak_kb << 10);
        (void)puts("at rest");
        (void)fflush(stdout);
        (void)getchar();
    }
    return steady[0] + extra[0] == 2 ? 0 : 1;
}
