/*
 * Plain text: telling it, and writing it. See text.h.
 */
#include "text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>

#include "arguments.h"
#include "names.h"
#include "trace_order.h"

enum { LOOK_BYTES = 4096 }; /* of a file, to see what it is */

/* The first line tells: "# ..." or "0 12 malloc". */
bool hz_text_is_one(const hz_file_bytes *file)
{
    const size_t length = file->size < LOOK_BYTES ? file->size : LOOK_BYTES;
    size_t at = 0;
    for (size_t i = 0; i < length; i++)
        if (file->bytes[i] < ' ' && !isspace(file->bytes[i])) return false;
    while (at < length && isspace(file->bytes[at])) at++;
    if (at < length && file->bytes[at] == '#') return true;
    const size_t start = at;
    while (at < length && isdigit(file->bytes[at])) at++;
    return at > start && at < length && isspace(file->bytes[at]);
}

/* Touched bytes stand before the block that they are of, and in the text behind it. */
static void write_operation(const hz_ordered *next, uint64_t *touch, FILE *out)
{
    const hz_trace_operation *operation = &next->operation;
    const hz_trace_kind kind = operation->kind;
    if (kind == HZ_TRACE_TOUCH) {
        touch[next->thread] = operation->size;
        return;
    }
    (void)fprintf(out, "%" PRIu32 " %" PRIu64 " %s", next->thread, next->time_ns,
                  hz_kind_name(kind));
    if (kind == HZ_TRACE_SPAWN || kind == HZ_TRACE_JOIN) {
        (void)fprintf(out, " %" PRIu32 "\n", operation->operand);
        return;
    }
    (void)fprintf(out, " %" PRIu64, next->block);
    if (!hz_trace_ends(kind)) (void)fprintf(out, " %" PRIu64, operation->size);
    if (!hz_trace_ends(kind) && operation->align_shift != 0)
        (void)fprintf(out, " %" PRIu64, UINT64_C(1) << operation->align_shift);
    (void)fputc('\n', out);
    if (!hz_trace_ends(kind) && touch[next->thread] != 0) {
        (void)fprintf(out, "%" PRIu32 " %" PRIu64 " touch %" PRIu64 " %" PRIu64 "\n", next->thread,
                      next->time_ns, next->block, touch[next->thread]);
        touch[next->thread] = 0;
    }
}

void hz_text_write(const hz_trace *trace, FILE *out)
{
    hz_ordered next;
    hz_order *order = hz_order_make(trace);
    uint64_t *touch = calloc((size_t)trace->header->thread_count + 1, sizeof *touch);
    if (touch == NULL) hz_fail("no memory for a trace");
    (void)fputs("# thread ns operation block size alignment\n", out);
    while (hz_order_next(order, &next)) write_operation(&next, touch, out);
    free(touch);
    hz_order_drop(order);
}
