/*
 * Variables for what google/tcmalloc takes from a program's code alone. A part of libhz-deepbind.so.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* NULL where google/tcmalloc is not in the process. */
__attribute__((weak)) void MallocExtension_Internal_SetMaxPerCpuCacheSize(int32_t bytes);
__attribute__((weak)) void MallocExtension_Internal_SetBackgroundReleaseRate(size_t bytes_per_s);
__attribute__((weak)) void MallocExtension_Internal_ProcessBackgroundActions(void);

/* It returns memory and cleans caches for as long as the process lives. */
static void *work_in_background(void *unused)
{
    MallocExtension_Internal_ProcessBackgroundActions();
    return unused;
}

__attribute__((constructor)) static void set_google_tcmalloc(void)
{
    const char *cache = secure_getenv("HZ_TCMALLOC_MAX_PER_CPU_CACHE_SIZE");
    const char *rate = secure_getenv("HZ_TCMALLOC_BACKGROUND_RELEASE_RATE");
    pthread_t worker;
    if (MallocExtension_Internal_ProcessBackgroundActions == NULL) return;
    if (cache != NULL)
        MallocExtension_Internal_SetMaxPerCpuCacheSize((int32_t)strtol(cache, NULL, 10));
    if (rate == NULL || strtoul(rate, NULL, 10) == 0) return;
    MallocExtension_Internal_SetBackgroundReleaseRate(strtoul(rate, NULL, 10));
    if (pthread_create(&worker, NULL, work_in_background, NULL) == 0) (void)pthread_detach(worker);
}
