/*
 * Reading a log: see log_format.h. It may be cut or damaged; what stands before that is read.
 */
#ifndef HZ_TRACE_LOG_READ_H
#define HZ_TRACE_LOG_READ_H

#include "log_format.h"

/* A file in memory, and its frames of events by thread, in order. */
typedef struct hz_log {
    const unsigned char *bytes;  /* the file */
    size_t size;                 /* in bytes */
    hz_log_header header;        /* a copy */
    const hz_log_frame **frames; /* of events; sorted by image, thread and place in its log */
    size_t frame_count;          /* how many */
    size_t frame_room;           /* for how many there is room */
    const hz_log_frame **images; /* of command lines */
    size_t image_count;          /* how many */
    size_t image_room;           /* for how many there is room */
    size_t whole_bytes;          /* up to the end of the last whole frame */
    bool is_complete;            /* the last frame is there */
    hz_log_end end;              /* a copy, when it is complete */
} hz_log;

/* What one call logged. */
typedef struct hz_event {
    unsigned kind;       /* hz_trace_kind or HZ_LOG_... */
    uint8_t align_shift; /* log2 of the alignment, or 0 */
    uint64_t stamp;      /* when */
    uint64_t address;    /* of the block, or a pthread_t */
    uint64_t size;       /* in bytes */
} hz_event;

/* A thread's place in its log. */
typedef struct hz_log_cursor {
    const hz_log_frame *const *frame; /* the one that is read */
    const hz_log_frame *const *end;   /* behind the thread's last one */
    size_t offset;                    /* in that frame */
    uint64_t stamp;                   /* of the last event */
} hz_log_cursor;

/* Whether these bytes start as a log does. */
bool hz_log_is_one(const void *bytes, size_t size);

/* Reads a log; refuses with a sentence what is none. `path` is for messages. */
void hz_log_read(hz_log *log, const char *path, const unsigned char *bytes, size_t size);

/* The next event; false at the end of what is whole. */
bool hz_log_next(hz_log_cursor *cursor, hz_event *event);

void hz_log_drop(hz_log *log);

#endif
