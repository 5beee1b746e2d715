/*
 * Programs with a limit: what hz maps counts against it, and hz maps no more than it needs. They
 * start, they get NULL and ENOMEM at the end of it, and go on. And a core file holds what is
 * resident, not what is reserved.
 */
#include "check.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const size_t mebibyte = 1u << 20;
static const size_t gibibyte = 1u << 30;

static void limit_to(size_t bytes)
{
    const struct rlimit limit = {bytes, bytes};
    free(malloc(100));
    require(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit: %s", strerror(errno));
}

CHECK("malloc gives what a limit that is set late allows, and no more")
{
    size_t given = 0;
    limit_to(gibibyte);
    while (malloc(10 * mebibyte) != NULL) given += 10 * mebibyte;
    require(given <= gibibyte && given >= gibibyte / 10 * 9, "malloc gave %zu bytes", given);
}

CHECK("what is refused, of any size, leaves nothing behind")
{
    limit_to(gibibyte);
    const size_t mapped = mapped_bytes();
    for (size_t refused = 1; refused <= 64; refused *= 2)
        require(malloc(refused * gibibyte) == NULL, "%zu GiB are given", refused);
    require(mapped_bytes() == mapped, "%zu bytes, then %zu", mapped, mapped_bytes());
    for (size_t i = 0; i < 100; i++) (void)filled_block(malloc(mebibyte), mebibyte);
}

/* ---- limits that a program starts with ------------------------------------------------------- */

PROGRAM("--some")
{
    require(malloc(number_chosen("TEST_BYTES", 0)) != NULL, "they are refused");
}
PROGRAM("--little")
{
    require(mapped_bytes() < 64 * mebibyte, "%zu bytes are mapped", mapped_bytes());
}

CHECK_IN(60, "a program gets nearly all that its limit allows, and maps little")
{
    require_program("--some", 4 * gibibyte, "TEST_BYTES=3221225472");
    require_program("--some", 16 * mebibyte, "TEST_BYTES=524288");
    require_program("--little", (size_t)127 << 40, NULL);
}

CHECK_IN(60, "echo runs under a hundred limits from 32 MiB to 32 GiB")
{
    for (size_t i = 0; i < 100; i++) {
        ending result;
        const size_t octave = (32 * mebibyte) << i / 10, limit = octave + octave / 10 * (i % 10);
        launch this = {"/bin/echo", "hello", NULL, limit >> 16 << 16};
        run_apart(launch_now, &this, 20, &result);
        require(result.status == 0 && strcmp(result.said, "hello\n") == 0, "%zu KiB: it said '%s'",
                limit >> 10, result.said);
    }
}

/* ---- without memory -------------------------------------------------------------------------- */

/* Fills the heap with blocks of one size, which make a list. The result is the number of blocks. */
static size_t exhaust(void ***list, size_t size)
{
    size_t count = 0;
    *list = NULL;
    errno = 0;
    for (void **block = malloc(size); block != NULL; block = malloc(size), count++) {
        memset(block, 0x6d, size);
        block[0] = *list;
        *list = block;
    }
    require(errno == ENOMEM, "NULL with errno %d", errno);
    return count;
}

static void free_list(void **list)
{
    while (list != NULL) {
        void **next = list[0];
        free(list);
        list = next;
    }
}

static void exhaust_and_recover(size_t size, size_t least_bytes)
{
    void **list = NULL;
    size_t counts[3];
    for (size_t round = 0; round < COUNT(counts); round++) {
        counts[round] = exhaust(&list, size);
        free_list(list);
        require(counts[round] * size >= least_bytes, "round %zu had only %zu blocks of %zu bytes",
                round, counts[round], size);
    }
    require(counts[2] * 10 >= counts[0] * 9, "%zu blocks the first time, %zu the last", counts[0],
            counts[2]);
}

static void *exhaust_in_thread(void *number)
{
    void **list = NULL;
    for (int round = 0; round < 5; round++) {
        (void)exhaust(&list, (size_t)16 << 2 * (size_t)number);
        free_list(list);
    }
    return NULL;
}

PROGRAM("--small")
{
    exhaust_and_recover(200, 24 * mebibyte);
}
PROGRAM("--threads")
{
    pthread_attr_t small;
    crowd all;
    (void)pthread_attr_init(&small);
    (void)pthread_attr_setstacksize(&small, 256 * 1024);
    require(pthread_setattr_default_np(&small) == 0, "stacks are as large as before");
    crowd_start(&all, 4, exhaust_in_thread);
    crowd_end(&all);
    exhaust_and_recover(1000, 8 * mebibyte);
}

/* Frees all blocks but the first ones of each 64 KiB, and returns these: a magazine that keeps them
 * holds a block of each span. */
static void **free_but_first_ones(void **list)
{
    void **last = NULL;
    while (list != NULL) {
        void **next = list[0];
        if (((uintptr_t)list & 0xffff) < 0x1000 &&
            (last == NULL || ((uintptr_t)list ^ (uintptr_t)last) >> 16 != 0)) {
            list[0] = last;
            last = list;
        } else {
            free(list);
        }
        list = next;
    }
    return last;
}

static void require_other_sizes(void)
{
    require(malloc(2 * mebibyte) != NULL && malloc(1000) != NULL, "NULL where all is free");
}

PROGRAM("--other")
{
    void **list = NULL;
    (void)exhaust(&list, 16);
    free_list(free_but_first_ones(list));
    require_other_sizes();
}

static void **reserve;

static bool free_the_reserve(size_t size)
{
    require(size == 64 * mebibyte || size == 2 * mebibyte, "it hears of %zu bytes", size);
    if (reserve == NULL) return false;
    free_list(reserve);
    reserve = NULL;
    return true;
}

PROGRAM("--hook")
{
    void **list = NULL;
    void (*set)(bool (*)(size_t)); /* what it returns is of no use here */
    *(void **)&set = dlsym(RTLD_DEFAULT, "hz_on_out_of_memory");
    (void)exhaust(&list, 16);
    void **first_ones = free_but_first_ones(list);
    require(malloc(64 * mebibyte) == NULL, "more than the limit");
    reserve = first_ones;
    set(free_the_reserve);
    require_other_sizes();
}

CHECK_IN(60, "blocks run out in order, also in four threads, and can be had again")
{
    require_program("--small", 64 * mebibyte, NULL);
    require_program("--threads", 96 * mebibyte, NULL);
}
CHECK_IN(60, "what a thread's magazine keeps, or a hook frees, serves a request of another size")
{
    require_program("--other", 16 * mebibyte, "HZ_MAGAZINE_GROWTH=full");
    require_program("--hook", 16 * mebibyte, "HZ_MAGAZINE_GROWTH=full");
}

/* ---- locked memory, core files --------------------------------------------------------------- */

/* The user who runs the test may have no right to more than the usual 8 MiB. */
CHECK("memory can be locked")
{
    struct rlimit limit;
    free(malloc(100));
    require(getrlimit(RLIMIT_MEMLOCK, &limit) == 0, "getrlimit: %s", strerror(errno));
    if (limit.rlim_max > 4 * gibibyte) limit.rlim_max = 4 * gibibyte;
    limit.rlim_cur = limit.rlim_max;
    require(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit: %s", strerror(errno));
    require(geteuid() != 0 || setuid(65534) == 0, "setuid: %s", strerror(errno));
    const size_t mapped = mapped_bytes();
    require(mapped < 16 * mebibyte, "%zu bytes are mapped at the start", mapped);
    const int failed = mapped > limit.rlim_cur ? 0 : mlockall(MCL_CURRENT | MCL_FUTURE);
    require(failed == 0, "mlockall: %s, of %zu bytes", strerror(errno), mapped);
    free(filled_block(malloc(64 * 1024), 64 * 1024));
}

/* Bytes of the mappings that the kernel would write to a core file: touched, and not marked as no
 * part of it ("dd"). */
static size_t core_bytes(void)
{
    char line[512];
    size_t total = 0, size = 0, anonymous = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    require(file != NULL, "cannot read /proc/self/smaps");
    while (fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "Size: %zu", &size);
        (void)sscanf(line, "Anonymous: %zu", &anonymous);
        if (strncmp(line, "VmFlags:", 8) == 0 && anonymous > 0 && strstr(line, " dd") == NULL)
            total += size << 10;
    }
    (void)fclose(file);
    return total;
}

CHECK("a core file holds what is resident and at most 16 MiB more")
{
    for (size_t i = 0; i < 40000; i++) (void)memset(malloc(i % 1000 * 3 + 1), 1, i % 1000 * 3 + 1);
    const size_t core = core_bytes(), resident = resident_bytes();
    require(core <= resident + 16 * mebibyte, "a core file would have %zu bytes, %zu are resident",
            core, resident);
}
