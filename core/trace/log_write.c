/*
 * Writing a log: see log_write.h.
 */
#include "log_write.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "arguments.h"
#include "clock.h"

/* Writes all of it, or sees to it that nothing of it is in the file. */
static bool write_whole(hz_log_writer *writer, struct iovec *parts, int count)
{
    size_t wanted = 0;
    size_t done = 0;
    for (int i = 0; i < count; i++) wanted += parts[i].iov_len;
    while (done < wanted) {
        const ssize_t written = pwritev(writer->fd, parts, count, (off_t)(writer->bytes + done));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            writer->failure = written < 0 ? errno : ENOSPC;
            (void)!ftruncate(writer->fd, (off_t)writer->bytes);
            return false;
        }
        done += (size_t)written;
        for (size_t rest = (size_t)written; rest > 0 && count > 0;) {
            const size_t part = rest < parts->iov_len ? rest : parts->iov_len;
            parts->iov_base = (char *)parts->iov_base + part;
            parts->iov_len -= part;
            rest -= part;
            if (parts->iov_len == 0) parts++, count--;
        }
    }
    writer->bytes += wanted;
    return true;
}

void hz_log_open(hz_log_writer *writer, const char *path, uint32_t clock, bool is_woken)
{
    hz_log_header header = {.version = HZ_LOG_VERSION, .clock = clock, .is_woken = is_woken};
    *writer = (hz_log_writer){0};
    writer->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (writer->fd < 0 && errno == EEXIST)
        hz_refuse("%s is there: another recording writes it, or one was cut; make a trace of it by "
                  "`hztune trace convert`, or remove it",
                  path);
    if (writer->fd < 0) hz_refuse("cannot write %s: %s", path, strerror(errno));
    memcpy(header.magic, HZ_LOG_MAGIC, sizeof header.magic);
    header.ns = hz_clock_monotonic_ns(CLOCK_MONOTONIC);
    header.stamp = hz_stamp(clock);
    header.checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, &header, sizeof header / 8);
    struct iovec part = {&header, sizeof header};
    if (!write_whole(writer, &part, 1)) {
        (void)unlink(path);
        hz_refuse("cannot write %s: %s", path, strerror(writer->failure));
    }
}

bool hz_log_append(hz_log_writer *writer, hz_log_frame *frame, const void *content)
{
    const size_t words = frame->bytes / 8;
    const size_t rest = frame->bytes % 8;
    uint64_t last = 0;
    if (writer->failure != 0) return false;
    memcpy(&last, (const char *)content + 8 * words, rest);
    frame->magic = HZ_FRAME_MAGIC;
    frame->checksum = 0;
    uint64_t checksum = hz_trace_checksum(HZ_TRACE_CHECKSUM_START, frame, sizeof *frame / 8);
    checksum = hz_trace_checksum(checksum, content, words);
    frame->checksum = hz_trace_checksum(checksum, &last, rest != 0);
    struct iovec parts[] = {{frame, sizeof *frame},
                            {(void *)(uintptr_t)content, 8 * words},
                            {&last, rest != 0 ? sizeof last : 0}};
    return write_whole(writer, parts, sizeof parts / sizeof parts[0]);
}
