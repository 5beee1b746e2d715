/*
 * Forms of recordings: which one a file has, and writing them. See foreign.h.
 */
#include "foreign.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "names.h"
#include "trace_order.h"

enum {
    LOOK_BYTES = 4096,  /* of a file, to see what it is */
    FIRST_TID = 1,      /* of the threads that Android's form has */
    WORKLOAD_START = 8, /* the first byte of a workload of trace_run */
};

/* ---- which form ----------------------------------------------------------------------------- */

static const char *const form_names[] = {
    [HZ_FORM_TEXT] = "text",
    [HZ_FORM_AOSP] = "aosp",
    [HZ_FORM_MTRACE] = "mtrace",
    [HZ_FORM_WORKLOAD] = "trace_run",
};

hz_form hz_form_named(const char *name)
{
    for (hz_form form = HZ_FORM_TEXT; form <= HZ_FORM_WORKLOAD; form++)
        if (strcmp(name, form_names[form]) == 0) return form;
    return HZ_FORM_NONE;
}

static bool is_text(const hz_file_bytes *file)
{
    const size_t length = file->size < LOOK_BYTES ? file->size : LOOK_BYTES;
    for (size_t i = 0; i < length; i++) {
        const unsigned char byte = file->bytes[i];
        if (byte < ' ' && byte != '\n' && byte != '\r' && byte != '\t') return false;
    }
    return length > 0;
}

/* The first line tells: "# ...", "0 12 malloc", "12: malloc", "= Start", "@ where". */
hz_form hz_form_of(const hz_file_bytes *file)
{
    if (file->size == 0) return HZ_FORM_NONE;
    if (!is_text(file)) return file->bytes[0] == WORKLOAD_START ? HZ_FORM_WORKLOAD : HZ_FORM_NONE;
    size_t at = 0;
    while (at < file->size && isspace(file->bytes[at])) at++;
    const unsigned char first = at < file->size ? file->bytes[at] : 0;
    if (first == '#') return HZ_FORM_TEXT;
    if (first == '=' || first == '@') return HZ_FORM_MTRACE;
    while (at < file->size && isdigit(file->bytes[at])) at++;
    if (!isdigit(first) || at == file->size) return HZ_FORM_NONE;
    return file->bytes[at] == ':' ? HZ_FORM_AOSP : HZ_FORM_TEXT;
}

double hz_foreign_read(hz_form form, const char *path, const hz_file_bytes *file,
                       hz_resolver *resolver)
{
    double ns_per_unit = 0.0;
    if (form == HZ_FORM_WORKLOAD)
        hz_read_workload(path, file, resolver);
    else
        ns_per_unit = hz_read_lines(form, path, file, resolver);
    hz_resolver_finish(resolver);
    return ns_per_unit;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Touched bytes stand before the block that they are of, and in the text behind it. */
static void write_text(const hz_ordered *next, uint64_t *touch, FILE *out)
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

/* Pages of valloc and pvalloc have an alignment that the kind tells. */
static uint64_t alignment_of(const hz_trace_operation *operation)
{
    if (operation->kind == HZ_TRACE_VALLOC || operation->kind == HZ_TRACE_PVALLOC) return 4096;
    return operation->align_shift != 0 ? UINT64_C(1) << operation->align_shift : 0;
}

static void write_aosp(const hz_ordered *next, bool has_time, FILE *out)
{
    const hz_trace_operation *operation = &next->operation;
    const uint64_t address = next->block * HZ_ADDRESS_UNIT;
    if (!hz_trace_calls(operation->kind)) return;
    (void)fprintf(out, "%" PRIu32 ": ", next->thread + FIRST_TID);
    if (hz_trace_ends(operation->kind))
        (void)fprintf(out, "free 0x%" PRIx64, address);
    else if (operation->kind == HZ_TRACE_REALLOC)
        (void)fprintf(out, "realloc 0x%" PRIx64 " 0x%" PRIx64 " %" PRIu64, address, address,
                      operation->size);
    else if (operation->kind == HZ_TRACE_CALLOC)
        (void)fprintf(out, "calloc 0x%" PRIx64 " 1 %" PRIu64, address, operation->size);
    else if (alignment_of(operation) != 0)
        (void)fprintf(out, "memalign 0x%" PRIx64 " %" PRIu64 " %" PRIu64, address,
                      alignment_of(operation), operation->size);
    else
        (void)fprintf(out, "malloc 0x%" PRIx64 " %" PRIu64, address, operation->size);
    if (has_time) (void)fprintf(out, " %" PRIu64 " %" PRIu64, next->time_ns, next->time_ns);
    (void)fputc('\n', out);
}

static void write_mtrace(const hz_ordered *next, FILE *out)
{
    const hz_trace_operation *operation = &next->operation;
    const uint64_t address = next->block * HZ_ADDRESS_UNIT;
    if (!hz_trace_calls(operation->kind)) return;
    if (hz_trace_ends(operation->kind))
        (void)fprintf(out, "@ trace - 0x%" PRIx64 "\n", address);
    else if (operation->kind == HZ_TRACE_REALLOC)
        (void)fprintf(out, "@ trace < 0x%" PRIx64 "\n@ trace > 0x%" PRIx64 " 0x%" PRIx64 "\n",
                      address, address, operation->size);
    else
        (void)fprintf(out, "@ trace + 0x%" PRIx64 " 0x%" PRIx64 "\n", address, operation->size);
}

void hz_foreign_write(hz_form form, const hz_trace *trace, FILE *out)
{
    hz_ordered next;
    hz_order *order = hz_order_make(trace);
    uint64_t *touch = calloc((size_t)trace->header->thread_count + 1, sizeof *touch);
    const bool has_time = (trace->header->flags & HZ_TRACE_HAS_TIME) != 0;
    if (touch == NULL) hz_fail("no memory for a trace");
    if (form == HZ_FORM_TEXT) (void)fputs("# thread ns operation block size alignment\n", out);
    if (form == HZ_FORM_MTRACE) (void)fputs("= Start\n", out);
    while (hz_order_next(order, &next)) {
        if (form == HZ_FORM_TEXT)
            write_text(&next, touch, out);
        else if (form == HZ_FORM_AOSP)
            write_aosp(&next, has_time, out);
        else
            write_mtrace(&next, out);
    }
    if (form == HZ_FORM_MTRACE) (void)fputs("= End\n", out);
    free(touch);
    hz_order_drop(order);
}
