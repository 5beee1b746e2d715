/*
 * Which allocator this process runs on: proved, not assumed.
 */
#ifndef HZ_BENCH_ALLOCATOR_H
#define HZ_BENCH_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>

/* Path of the library whose malloc this process calls, or "". */
const char *hz_allocator_path(void);

/* hz_stats_json's object when hz is in effect (mapped memory, never freed), else NULL. */
const char *hz_allocator_stats(void);

/* Tells libhz-ledger.so (experiments/scale) that the counted window begins, or ends. Only with
 * HZ_LEDGER in the environment: else nothing is called, or even looked up. */
void hz_allocator_window(bool begins);

#endif
