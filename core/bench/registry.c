/*
 * The list of workloads. To add one: write its file in workloads/, name it here and in
 * CMakeLists.txt.
 */
#include "bench.h"

#define HZ_WORKLOADS(X)                                                                            \
    X(larson)                                                                                      \
    X(remote)                                                                                      \
    X(pipeline)                                                                                    \
    X(xmalloc)                                                                                     \
    X(lifo)                                                                                        \
    X(fifo)                                                                                        \
    X(random)                                                                                      \
    X(interleaved)                                                                                 \
    X(mixed)                                                                                       \
    X(mstress)                                                                                     \
    X(rptest)                                                                                      \
    X(sh6)                                                                                         \
    X(sh8)                                                                                         \
    X(alloctest)                                                                                   \
    X(cache_scratch)                                                                               \
    X(cache_thrash)                                                                                \
    X(large)                                                                                       \
    X(threads)                                                                                     \
    X(burst_idle)                                                                                  \
    X(kv)                                                                                          \
    X(app)                                                                                         \
    X(trace)

#define DECLARE(name) extern const hz_workload hz_workload_##name;
HZ_WORKLOADS(DECLARE)

/* A build may bring one workload of its own (-DHZ_EXTRA_WORKLOAD=path.c), which defines this. */
#ifdef HZ_EXTRA_WORKLOAD
extern const hz_workload hz_extra_workload;
#endif

#define ROW(name) &hz_workload_##name,
static const hz_workload *const workloads[] = {
    HZ_WORKLOADS(ROW)
#ifdef HZ_EXTRA_WORKLOAD
        & hz_extra_workload,
#endif
};

size_t hz_workload_count(void)
{
    return HZ_LENGTH(workloads);
}

/* Row `index`, or NULL past the end. */
const hz_workload *hz_workload_at(size_t index)
{
    return index < HZ_LENGTH(workloads) ? workloads[index] : NULL;
}
