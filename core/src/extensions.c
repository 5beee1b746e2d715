/*
 * What glibc adds to malloc: mallinfo, malloc_stats, malloc_info and the like, in glibc's formats.
 * Its words mean here:
 *
 *     its word        here
 *     arena, system   pages that hold blocks, and unused ones that are still resident
 *     in use          blocks that the program has, with their usable sizes, whatever their size
 *     fast            free blocks in the caches of threads
 *     rest            the other free blocks, the uncut ends of spans, unused pages
 *     mmap            nothing: blocks of all sizes come from one place
 *
 * So arena = in use + fast + rest, as with glibc. Exact while no other thread is inside hz.
 *
 * musl has none of these but malloc_trim's purpose: there this file defines malloc_trim only.
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "account.h"
#include "internal.h"
#include "override.h"

__attribute__((visibility("hidden"))) const char hz_extensions = 0;

DROP_IN int malloc_trim(size_t pad)
{
    (void)pad;
    return hz_trim();
}

#ifdef __GLIBC__

/* None of mallopt's parameters applies to hz. Those that glibc knows are accepted, as programs
 * treat a refusal as a failure. */
DROP_IN int mallopt(int parameter, int value)
{
    (void)value;
    return parameter == M_MXFAST || (M_ARENA_MAX <= parameter && parameter <= M_TRIM_THRESHOLD);
}

/* ---- mallinfo ------------------------------------------------------------------------------- */

DROP_IN struct mallinfo2 mallinfo2(void)
{
    struct mallinfo2 info;
    const hz_usage usage = hz_usage_now();
    memset(&info, 0, sizeof info);
    info.arena = usage.held_bytes;
    info.ordblks = usage.shared_blocks;
    info.smblks = usage.cached_blocks;
    info.fsmblks = usage.cached_bytes;
    info.uordblks = usage.live_bytes;
    info.fordblks = usage.held_bytes - usage.live_bytes;
    info.keepcost = usage.free_bytes;
    return info;
}

/* glibc cuts off the high bits; the largest number at least says "this or more". */
static int clamp_to_int(size_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int)value;
}

DROP_IN struct mallinfo mallinfo(void)
{
    const struct mallinfo2 wide = mallinfo2();
    return (struct mallinfo){
        .arena = clamp_to_int(wide.arena),
        .ordblks = clamp_to_int(wide.ordblks),
        .smblks = clamp_to_int(wide.smblks),
        .fsmblks = clamp_to_int(wide.fsmblks),
        .uordblks = clamp_to_int(wide.uordblks),
        .fordblks = clamp_to_int(wide.fordblks),
        .keepcost = clamp_to_int(wide.keepcost),
    };
}

/* ---- malloc_info ---------------------------------------------------------------------------- */

/* The free blocks of each class. */
static void xml_add_sizes(FILE *xml, const hz_survey *survey)
{
    fprintf(xml, "<sizes>\n");
    for (uint32_t class_ = 1; class_ <= HZ_CLASSES; class_++) {
        const size_t count = survey->cached[class_] + survey->shared[class_];
        const size_t to = hz_class_bytes[class_];
        const size_t from = class_ <= HZ_SIZED_CLASSES ? hz_class_bytes[class_ - 1] + 1 : to;
        if (count == 0) continue;
        fprintf(xml, "  <size from=\"%zu\" to=\"%zu\" total=\"%zu\" count=\"%zu\"/>\n", from, to,
                count * to, count);
    }
    fprintf(xml, "</sizes>\n");
}

static void xml_add_free(FILE *xml, const hz_usage *usage)
{
    fprintf(xml, "<total type=\"fast\" count=\"%zu\" size=\"%zu\"/>\n", usage->cached_blocks,
            usage->cached_bytes);
    fprintf(xml, "<total type=\"rest\" count=\"%zu\" size=\"%zu\"/>\n", usage->shared_blocks,
            usage->held_bytes - usage->live_bytes - usage->cached_bytes);
}

static void xml_add_system(FILE *xml, const hz_usage *usage)
{
    fprintf(xml, "<system type=\"current\" size=\"%zu\"/>\n", usage->held_bytes);
    fprintf(xml, "<system type=\"max\" size=\"%zu\"/>\n", usage->committed_bytes);
    fprintf(xml, "<aspace type=\"total\" size=\"%zu\"/>\n", usage->committed_bytes);
    fprintf(xml, "<aspace type=\"mprotect\" size=\"%zu\"/>\n", usage->committed_bytes);
}

/* As glibc writes it for a process with one heap. All is counted before the first write, which may
 * allocate. There is no buffer: the thread's stack may be small. */
DROP_IN int malloc_info(int options, FILE *xml)
{
    hz_survey survey;
    if (options != 0) return EINVAL;
    (void)hz_survey_make(&survey);
    const hz_usage usage = hz_survey_usage(&survey);
    flockfile(xml);
    const bool had_error = ferror(xml) != 0;
    fprintf(xml, "<malloc version=\"1\">\n<heap nr=\"0\">\n");
    xml_add_sizes(xml, &survey);
    xml_add_free(xml, &usage);
    xml_add_system(xml, &usage);
    fprintf(xml, "</heap>\n");
    xml_add_free(xml, &usage);
    fprintf(xml, "<total type=\"mmap\" count=\"0\" size=\"0\"/>\n");
    xml_add_system(xml, &usage);
    fprintf(xml, "</malloc>\n");
    const bool is_written = had_error || ferror(xml) == 0;
    funlockfile(xml);
    return is_written ? 0 : -1;
}

/* ---- malloc_stats --------------------------------------------------------------------------- */

static void text_add_bytes(hz_text *text, const char *what, const hz_usage *usage)
{
    hz_text_add(text, "%s\nsystem bytes     = %10zu\nin use bytes     = %10zu\n", what,
                usage->held_bytes, usage->live_bytes);
}

/* No cancellation point, as in glibc. */
DROP_IN void malloc_stats(void)
{
    char stats[512];
    int state;
    hz_text text = {stats, sizeof stats, 0};
    const hz_usage usage = hz_usage_now();
    text_add_bytes(&text, "Arena 0:", &usage);
    text_add_bytes(&text, "Total (incl. mmap):", &usage);
    hz_text_add(&text, "max mmap regions = %10d\nmax mmap bytes   = %10d\n", 0, 0);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    (void)fputs(stats, stderr);
    pthread_setcancelstate(state, &state);
}

#endif
