/*
 * Reading a log, which may be cut or damaged: what stands before that is read. The events of one
 * image's threads become steps, in the order of their stamps.
 */
#ifndef HZ_TRACE_LOG_READ_H
#define HZ_TRACE_LOG_READ_H

#include "log_format.h"
#include "resolve.h"

/* A list of frames. */
typedef struct hz_frames {
    const hz_log_frame **at; /* in the file */
    size_t count;            /* how many */
    size_t room;             /* for how many there is room */
} hz_frames;

/* A file in memory, and its frames. */
typedef struct hz_log {
    const unsigned char *bytes; /* the file */
    size_t size;                /* in bytes */
    hz_log_header header;       /* a copy */
    hz_frames events;           /* sorted by image, thread and place in its log */
    hz_frames images;           /* of command lines */
    bool is_complete;           /* the last frame is there */
    hz_log_end end;             /* a copy, when it is complete */
} hz_log;

/* The frames of one image: they stand side by side. Zeros stand before the first one. */
typedef struct hz_log_image {
    size_t first;    /* index of its first frame */
    size_t end;      /* behind its last one */
    uint32_t number; /* of the pool */
    uint64_t bytes;  /* that it logged */
} hz_log_image;

/* Reads a log; refuses with a sentence what is none. `path` is for messages. */
void hz_log_read(hz_log *log, const char *path, const unsigned char *bytes, size_t size);

/* Goes on to the next image of a log; false: there is none. */
bool hz_log_next_image(const hz_log *log, hz_log_image *image);

/* Resolves all events of an image. */
void hz_log_merge(const hz_log *log, const hz_log_image *image, hz_resolver *resolver);

/*
 * finish.c: reads a log and writes the trace of the image that logged most to `output`, with
 * `is_each` those of all others to OUTPUT.PID-NUMBER; says on stderr what is in them. False:
 * nothing was recorded.
 */
bool hz_finish_log(const char *file, const char *output, bool is_each);

#endif
