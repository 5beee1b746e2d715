/*
 * Reading a log: see log_read.h.
 */
#include "log_read.h"

#include <stdlib.h>
#include <string.h>

#include "arguments.h"

bool hz_log_is_one(const void *bytes, size_t size)
{
    const size_t length = strlen(HZ_LOG_MAGIC);
    return size >= length && memcmp(bytes, HZ_LOG_MAGIC, length) == 0;
}

static void read_header(hz_log *log, const char *path)
{
    if (log->size < sizeof log->header) hz_refuse("%s: the file ends in its header", path);
    memcpy(&log->header, log->bytes, sizeof log->header);
    hz_log_header copy = log->header;
    copy.checksum = 0;
    if (copy.version != HZ_LOG_VERSION)
        hz_refuse("%s: a log of version %u; this hztune reads version %d", path, copy.version,
                  HZ_LOG_VERSION);
    if (hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / 8) != log->header.checksum)
        hz_refuse("%s: its header is damaged; record again", path);
}

/* The frame at an offset and its length with what follows it; 0: it is not whole. */
static size_t whole_frame(const hz_log *log, size_t at, const hz_log_frame **frame)
{
    hz_log_frame copy;
    if (log->size - at < sizeof copy) return 0;
    memcpy(&copy, log->bytes + at, sizeof copy);
    const size_t content = ((size_t)copy.bytes + 7) / 8 * 8;
    if (copy.magic != HZ_FRAME_MAGIC || content > log->size - at - sizeof copy) return 0;
    const uint64_t checksum = copy.checksum;
    copy.checksum = 0;
    const uint64_t head = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &copy, sizeof copy / 8);
    if (hz_trace_checksum(head, log->bytes + at + sizeof copy, content / 8) != checksum) return 0;
    *frame = (const hz_log_frame *)(const void *)(log->bytes + at);
    return sizeof copy + content;
}

static void add_frame(const hz_log_frame ***list, size_t *count, size_t *room,
                      const hz_log_frame *frame)
{
    if (*count == *room) {
        *room = 2 * *room + 1024;
        *list = reallocarray(*list, *room, sizeof **list);
        if (*list == NULL) hz_fail("no memory for the frames of a log");
    }
    (*list)[(*count)++] = frame;
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *left, const void *right)
{
    const hz_log_frame *a = *(const hz_log_frame *const *)left;
    const hz_log_frame *b = *(const hz_log_frame *const *)right;
    int order = compare(a->image, b->image);
    if (order == 0) order = compare(a->thread, b->thread);
    if (order == 0) order = compare(a->number, b->number);
    return order != 0 ? order : compare(a->start, b->start);
}

void hz_log_read(hz_log *log, const char *path, const unsigned char *bytes, size_t size)
{
    const hz_log_frame *frame;
    size_t length;
    *log = (hz_log){.bytes = bytes, .size = size};
    read_header(log, path);
    for (log->whole_bytes = sizeof log->header;
         (length = whole_frame(log, log->whole_bytes, &frame)) != 0; log->whole_bytes += length) {
        if (frame->kind == HZ_FRAME_EVENTS)
            add_frame(&log->frames, &log->frame_count, &log->frame_room, frame);
        else if (frame->kind == HZ_FRAME_IMAGE)
            add_frame(&log->images, &log->image_count, &log->image_room, frame);
        else if (frame->bytes == sizeof log->end) {
            memcpy(&log->end, frame + 1, sizeof log->end);
            log->is_complete = frame->kind == HZ_FRAME_END;
        }
    }
    if (log->frame_count > 0) qsort(log->frames, log->frame_count, sizeof *log->frames, by_place);
}

void hz_log_drop(hz_log *log)
{
    free(log->frames);
    free(log->images);
    *log = (hz_log){0};
}

/* ---- events --------------------------------------------------------------------------------- */

/* Goes to the next frame; false when it does not go on where this one ended. */
static bool turn_page(hz_log_cursor *cursor)
{
    const hz_log_frame *old = *cursor->frame++;
    cursor->offset = 0;
    if (cursor->frame == cursor->end) return false;
    const hz_log_frame *new = *cursor->frame;
    const bool follows = new->number == old->number
                             ? new->start == old->start + old->bytes
                             : new->number == old->number + 1 && new->start == 0;
    if (!follows) cursor->frame = cursor->end;
    return follows;
}

static void unpack(hz_event *event, uint64_t head, uint64_t size)
{
    event->kind = (unsigned)hz_trace_bits(head, 0, HZ_LOG_KIND_BITS);
    event->address = head >> HZ_LOG_ADDRESS_AT << HZ_LOG_ADDRESS_SHIFT;
    event->size = size;
    event->align_shift = 0;
    if (hz_log_is_aligned(event->kind)) {
        event->align_shift = (uint8_t)hz_trace_bits(size, 0, HZ_LOG_ALIGN_BITS);
        event->size = size >> HZ_LOG_ALIGN_BITS;
    }
}

bool hz_log_next(hz_log_cursor *cursor, hz_event *event)
{
    while (cursor->frame != cursor->end) {
        const hz_log_frame *frame = *cursor->frame;
        const unsigned char *at = (const unsigned char *)(frame + 1) + cursor->offset;
        const size_t left = frame->bytes - cursor->offset;
        uint64_t head, size = 0, more = 0;
        if (left < sizeof head) {
            if (!turn_page(cursor)) return false;
            continue;
        }
        memcpy(&head, at, sizeof head);
        if (hz_trace_bits(head, 0, HZ_LOG_KIND_BITS) == HZ_LOG_TIME) {
            cursor->stamp += head >> HZ_LOG_KIND_BITS;
            cursor->offset += sizeof head;
            continue;
        }
        const unsigned size_bytes =
            hz_log_size_bytes((unsigned)hz_trace_bits(head, HZ_LOG_SIZE_CODE_AT, 2));
        const unsigned more_bytes = (head >> HZ_LOG_MORE_AT & 1) != 0 ? 2 : 0;
        if (left < sizeof head + size_bytes + more_bytes) return false;
        memcpy(&size, at + sizeof head, size_bytes);
        memcpy(&more, at + sizeof head + size_bytes, more_bytes);
        cursor->stamp +=
            hz_trace_bits(head, HZ_LOG_DELTA_AT, HZ_LOG_DELTA_BITS) | more << HZ_LOG_DELTA_BITS;
        cursor->offset += sizeof head + size_bytes + more_bytes;
        event->stamp = cursor->stamp;
        unpack(event, head, size);
        return true;
    }
    return false;
}
