/*
 * hz-trace: what is in a trace, a part of it, one that tells less, and other forms of it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arguments.h"
#include "emit.h"
#include "log_read.h"
#include "tools.h"
#include "trace_write.h"
#include "walk.h"

#define NS_PER_S 1e9

static const char about[] = "usage: hz-trace info FILE\n"
                            "       hz-trace cut FILE --output NEW [--from S] [--to S]\n"
                            "       hz-trace anonymize FILE --output NEW [--round-sizes BYTES]\n"
                            "       hz-trace convert FILE --output NEW [--to trace|text]\n\n"
                            "FILE is a trace; convert also takes the log of a recording, and plain "
                            "text.\n";

/* What was asked for. */
typedef struct request {
    const char *verb;    /* info, cut, anonymize or convert */
    const char *input;   /* the file that is read */
    const char *output;  /* the file that is written */
    double from_s, to_s; /* the part of it; to_s 0: up to its end */
    bool to_text;        /* text is written, not a trace */
    uint64_t unit;       /* sizes are rounded up to it; 0: they stay */
} request;

/* A file that was read. */
typedef struct loaded {
    hz_file_bytes file;
    hz_trace trace;       /* when it is one */
    bool is_trace;        /* whether it is */
    hz_resolver resolver; /* when it was resolved */
    hz_emission emission; /* what is known beside that */
} loaded;

/* ---- options -------------------------------------------------------------------------------- */

static void set_to(void *target, const char *name, const char *text)
{
    request *r = target;
    if (strcmp(r->verb, "convert") == 0) {
        r->to_text = strcmp(text, "text") == 0;
        if (!r->to_text && strcmp(text, "trace") != 0)
            hz_refuse("--%s %s: want trace or text", name, text);
    } else
        r->to_s = hz_parse_decimal(name, text, 1e-9, 1e9);
}

static void set_unit(void *target, const char *name, const char *text)
{
    const uint64_t unit = hz_parse_whole(name, text, 1, 1 << 20);
    if ((unit & (unit - 1)) != 0) hz_refuse("--%s %s: want a power of two", name, text);
    ((request *)target)->unit = unit;
}

#define HZ_TARGET request
static const hz_option options[] = {
    {"output", "NEW", "the file to write", HZ_STORE(TEXT, output)},
    {"from", "S", "cut: seconds from the start at which the part begins",
     HZ_NUMBER(DECIMAL, from_s, 0, 1e9)},
    {"to", "S|FORM", "cut: seconds at which it ends; convert: trace or text", HZ_DO(set_to)},
    {"round-sizes", "BYTES", "anonymize: sizes are rounded up to multiples of it", HZ_DO(set_unit)},
};

static const hz_command command = {about, options, sizeof options / sizeof options[0], NULL};

/* What is written tells less than what was read; that must not be lost. */
static void require_another(const char *input, const char *output)
{
    struct stat read, written;
    hz_require_output(output);
    if (stat(input, &read) == 0 && stat(output, &written) == 0 && read.st_dev == written.st_dev &&
        read.st_ino == written.st_ino)
        hz_refuse("cannot write %s: it is the file that is read; name another", output);
}

/* ---- reading -------------------------------------------------------------------------------- */

static loaded load(const request *r)
{
    loaded l = {.file = hz_read_file(r->input), .emission.path = r->output, .emission.notes = ""};
    l.is_trace = hz_starts_with(l.file.bytes, l.file.size, HZ_TRACE_MAGIC);
    if (l.is_trace) hz_trace_read(&l.trace, r->input, &l.file);
    return l;
}

static void take_trace(loaded *l, const request *r)
{
    const hz_trace_header *header = l->trace.header;
    if (!l->is_trace) hz_refuse("%s is not a trace", r->input);
    hz_resolver_make(&l->resolver, r->output);
    hz_resolve_trace(&l->trace, &l->resolver);
    l->emission.ns_per_unit = (header->flags & HZ_TRACE_HAS_TIME) != 0 ? 1.0 : 0.0;
    l->emission.flags = header->flags & HZ_TRACE_IS_PART;
    l->emission.notes = strndup(l->trace.notes, header->notes_bytes);
    if (l->emission.notes == NULL) hz_fail("no memory");
}

static void take_text(loaded *l, const request *r)
{
    char *notes;
    if (!hz_plain_is_one(&l->file))
        hz_refuse("%s is no trace, no recording and no plain text", r->input);
    hz_resolver_make(&l->resolver, r->output);
    l->emission.ns_per_unit = hz_plain_read(r->input, &l->file, &l->resolver);
    hz_resolver_tell(&l->resolver, "hz-trace");
    if (asprintf(&notes, "{\"unknown\":%" PRIu64 ",\"overlapping\":%" PRIu64 "}",
                 l->resolver.unknown, l->resolver.overlapping) < 0)
        hz_fail("no memory");
    l->emission.notes = notes;
}

static void write_output(loaded *l)
{
    if (l->resolver.steps.count == 0) hz_fail("%s: nothing is left to write", l->emission.path);
    (void)hz_emit(&l->resolver, &l->emission);
}

/* ---- verbs ---------------------------------------------------------------------------------- */

static void run_info(const request *r)
{
    const loaded l = load(r);
    if (!l.is_trace)
        hz_refuse("%s is not a trace%s", r->input,
                  hz_plain_is_one(&l.file) ||
                          hz_starts_with(l.file.bytes, l.file.size, HZ_LOG_MAGIC)
                      ? "; `hztune trace convert` makes one of it"
                      : "");
    hz_trace_describe(&l.trace, stdout);
    if (fflush(stdout) != 0) hz_fail("cannot write: %s", strerror(errno));
}

/* Only the part stays that was asked for. */
static void cut_part(loaded *l, const request *r)
{
    const hz_steps *steps = &l->resolver.steps;
    const uint64_t start = steps->count > 0 ? steps->at[0].time : 0;
    const uint64_t lasts = steps->count > 0 ? steps->at[steps->count - 1].time - start : 0;
    const uint64_t from = (uint64_t)(r->from_s * NS_PER_S);
    const uint64_t to = r->to_s > 0 ? (uint64_t)(r->to_s * NS_PER_S) : UINT64_MAX - start;
    if (l->emission.ns_per_unit <= 0) hz_fail("%s has no times to cut at", r->input);
    if (from > lasts)
        hz_refuse("--from %.12g: %s lasts %.6g s", r->from_s, r->input, (double)lasts / NS_PER_S);
    hz_cut(&l->resolver, start + from, start + to);
    l->emission.flags |= HZ_TRACE_IS_PART;
}

static void run_cut(const request *r)
{
    loaded l = load(r);
    take_trace(&l, r);
    if (r->from_s > 0 || r->to_s > 0) cut_part(&l, r);
    write_output(&l);
}

static void run_anonymize(const request *r)
{
    loaded l = load(r);
    take_trace(&l, r);
    hz_forget_names(&l.resolver);
    if (r->unit > 0) hz_round_sizes(&l.resolver, r->unit);
    l.emission.notes = "";
    write_output(&l);
}

/* Writes text, so that the file is there whole or not at all; what cannot be walked is refused
 * before there is one. */
static void write_text(const hz_trace *trace, const char *output)
{
    char *temporary;
    hz_ordered next;
    for (hz_walk *walk = hz_walk_make(trace); hz_walk_next(walk, &next);) continue;
    if (asprintf(&temporary, "%s.%d.part", output, (int)getpid()) < 0) hz_fail("no memory");
    FILE *out = fopen(temporary, "wxe");
    if (out == NULL) hz_refuse("cannot write %s: %s", output, strerror(errno));
    hz_plain_write(trace, out);
    const bool is_written = fflush(out) == 0 && fsync(fileno(out)) == 0 && ferror(out) == 0;
    if (fclose(out) != 0 || !is_written || rename(temporary, output) != 0) {
        const int why = errno;
        (void)unlink(temporary);
        hz_fail("cannot write %s: %s", output, strerror(why));
    }
    free(temporary);
}

static void run_convert(const request *r)
{
    loaded l = load(r);
    if (r->to_text) {
        if (!l.is_trace) hz_refuse("%s is not a trace; convert it into one first", r->input);
        write_text(&l.trace, r->output);
    } else if (hz_starts_with(l.file.bytes, l.file.size, HZ_LOG_MAGIC)) {
        if (!hz_finish_log(r->input, r->output, false))
            hz_fail("%s: nothing was recorded", r->input);
    } else {
        (l.is_trace ? take_trace : take_text)(&l, r);
        write_output(&l);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const request *r);
    } verbs[] = {{"info", run_info},
                 {"cut", run_cut},
                 {"anonymize", run_anonymize},
                 {"convert", run_convert}};
    request r = {.unit = 0};
    size_t verb = 0;
    if (argc > 1 && strcmp(argv[1], "--help") == 0)
        (void)hz_parse_option(&command, &r, 1, argc, argv);
    while (argc > 2 && verb < 4 && strcmp(argv[1], verbs[verb].name) != 0) verb++;
    if (argc < 3 || verb == 4) hz_refuse("want info, cut, anonymize or convert, and a file");
    r.verb = argv[1];
    r.input = argv[2];
    for (int at = 3; at < argc;) at = hz_parse_option(&command, &r, at, argc, argv);
    if (r.output == NULL && verb != 0) hz_refuse("--output: it is missing");
    if (r.output != NULL) require_another(r.input, r.output);
    if (r.to_s > 0 && r.to_s <= r.from_s) hz_refuse("--to must be later than --from");
    verbs[verb].run(&r);
    return HZ_STATUS_OK;
}
