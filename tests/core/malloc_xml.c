/* A program that prints the bytes that it has, as mallinfo2 tells them, and what malloc_info says.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 2000 };

int main(void)
{
    static void *blocks[BLOCKS];
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (size_t i = 0; i < BLOCKS; i++) blocks[i] = malloc(i * 37 % 3000);
    for (size_t i = 0; i < BLOCKS; i += 3) free(blocks[i]);
    void *large = memset(malloc(1 << 20), 1, 1 << 20);
    const struct mallinfo2 info = mallinfo2();
    printf("%zu\n", info.uordblks + info.hblkhd);
    malloc_info(0, stdout);
    free(large);
    return 0;
}
