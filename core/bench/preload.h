/*
 * What must be preloaded beside an allocator.
 */
#ifndef HZ_BENCH_PRELOAD_H
#define HZ_BENCH_PRELOAD_H

/*
 * Adds libhz-deepbind.so to LD_PRELOAD in `environment` where that names an allocator: without it
 * no program runs that loads libraries with RTLD_DEEPBIND. hz has it inside. Where the library is
 * not beside this program, nothing is added.
 */
void hz_preload_complete(char **environment);

#endif
