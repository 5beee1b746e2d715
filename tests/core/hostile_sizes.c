/*
 * A fuzzer of sizes, alignments and counts at the edges of what fits: no request above PTRDIFF_MAX
 * is ever granted, each refusal has the right error, and each block that is granted is as large and
 * as aligned as it was asked for. TEST_SEED and TEST_CALLS change it.
 */
#include "check.h"
#include "entry_points.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_BYTES = 100 }; /* of a block of up to a tebibyte, anywhere */
static const size_t granted_max =
    1u << 30; /* a block above this need not be granted, and is not touched */

/* A number near an edge: a power of two, the ends of the types, a divisor of SIZE_MAX; or small. */
static size_t edge(uint64_t *state)
{
    const uint64_t draw = random_next(state);
    const size_t near = (size_t)(draw >> 32) % 65;
    const size_t bit = (size_t)1 << (draw >> 8) % 64;
    switch (draw % 6) {
    case 0:
        return bit + near - 32;
    case 1:
        return (size_t)PTRDIFF_MAX + near - 32;
    case 2:
        return SIZE_MAX - near;
    case 3:
        return SIZE_MAX / (near + 1) + (draw >> 20) % 3;
    case 4:
        return (size_t)0 - bit + near;
    default:
        return (draw >> 16) % 5000;
    }
}

static int is_power_of_two(size_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Writes the ends of a block that was granted, and frees it. */
static void require_good(unsigned char *block, size_t alignment, size_t size, const char *by)
{
    require(size <= (size_t)PTRDIFF_MAX, "%s granted %zu bytes", by, size);
    require(((uintptr_t)block & (alignment - 1)) == 0, "%s of %zu bytes at %zu gave %p", by, size,
            alignment, (void *)block);
    require(malloc_usable_size(block) >= size, "%s of %zu bytes: usable %zu", by, size,
            malloc_usable_size(block));
    if (size > 0 && size <= granted_max) {
        block[0] = 1;
        block[size - 1] = 1;
    }
    free(block);
}

static void ask_entry_point(uint64_t *state)
{
    const entry_point *entry = &entry_points[random_next(state) % COUNT(entry_points)];
    const size_t size = edge(state);
    if (size == 0 && entry->take == take_realloc_grow) return;
    errno = 0;
    unsigned char *block = entry->take(size);
    if (block == NULL) {
        require(errno == ENOMEM, "%s of %zu bytes left errno %d", entry->name, size, errno);
        require(size > 1u << 20, "%s refused %zu bytes", entry->name, size);
        return;
    }
    require_good(block, 16, size, entry->name);
}

static void ask_product(uint64_t *state)
{
    const size_t count = edge(state);
    const size_t size = edge(state);
    size_t bytes = 0;
    const int overflows = __builtin_mul_overflow(count, size, &bytes);
    const int zeroed = random_next(state) % 2 == 0;
    errno = 0;
    unsigned char *block = zeroed ? calloc(count, size) : reallocarray(NULL, count, size);
    if (block == NULL) {
        require(errno == ENOMEM, "%zu x %zu bytes left errno %d", count, size, errno);
        return;
    }
    require(!overflows, "%zu x %zu bytes were granted", count, size);
    require_good(block, 16, bytes, zeroed ? "calloc" : "reallocarray");
}

static void ask_memalign(size_t alignment, size_t size, int strict)
{
    errno = 0;
    unsigned char *block = strict ? aligned_alloc(alignment, size) : memalign(alignment, size);
    if (block == NULL) {
        const int invalid = !is_power_of_two(alignment) || alignment > (size_t)PTRDIFF_MAX / 2;
        require(errno == ENOMEM || (errno == EINVAL && invalid), "%zu bytes at %zu left errno %d",
                size, alignment, errno);
        return;
    }
    require(!strict || is_power_of_two(alignment), "aligned_alloc took the alignment %zu",
            alignment);
    require_good(block, is_power_of_two(alignment) ? alignment : 16, size,
                 strict ? "aligned_alloc" : "memalign");
}

static void ask_posix_memalign(size_t alignment, size_t size)
{
    void *const untouched = (void *)(uintptr_t)0x5eed;
    void *block = untouched;
    const int valid = is_power_of_two(alignment) && alignment % sizeof(void *) == 0;
    const int reason = posix_memalign(&block, alignment, size);
    if (reason == 0) {
        require(valid, "posix_memalign took the alignment %zu", alignment);
        require_good(block, alignment, size, "posix_memalign");
        return;
    }
    require(block == untouched, "posix_memalign touched the pointer");
    require(reason == EINVAL ? !valid || alignment > (size_t)PTRDIFF_MAX / 2
                             : reason == ENOMEM && valid,
            "posix_memalign of %zu bytes at %zu: %d", size, alignment, reason);
}

static void ask_once(uint64_t *state)
{
    switch (random_next(state) % 5) {
    case 0:
        ask_product(state);
        break;
    case 1:
        ask_memalign(edge(state), edge(state), 0);
        break;
    case 2:
        ask_memalign(edge(state), edge(state), 1);
        break;
    case 3:
        ask_posix_memalign(edge(state), edge(state));
        break;
    default:
        ask_entry_point(state);
    }
}

CHECK_IN(120, "hostile requests are answered rightly")
{
    uint64_t state = seed_chosen(4);
    const uint64_t calls = number_chosen("TEST_CALLS", 100000);
    for (uint64_t i = 0; i < calls; i++) ask_once(&state);
    (void)malloc_trim(0); /* what was freed a moment ago may still be resident */
    /* Every block is free. hz's records of the pages that they began and ended at stay. */
    const size_t resident = resident_bytes(), most = ((size_t)16 << 20) + calls * RECORD_BYTES;
    require(resident < most, "%zu bytes are resident at the end, %zu may be", resident, most);
}
