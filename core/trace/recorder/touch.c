/*
 * How much of a large block is resident when it is freed: what the program touched of it, or what
 * an earlier block at its place did.
 */
#include "entry.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES_AT_ONCE = 1024 };

/* Pages of a range that are resident; the range starts at a page. */
static size_t resident_pages(unsigned char *start, size_t pages, size_t page_bytes)
{
    unsigned char is_there[PAGES_AT_ONCE];
    size_t found = 0;
    for (size_t done = 0; done < pages; done += PAGES_AT_ONCE) {
        const size_t count = pages - done < PAGES_AT_ONCE ? pages - done : PAGES_AT_ONCE;
        if (mincore(start + done * page_bytes, count * page_bytes, is_there) != 0) return found;
        for (size_t i = 0; i < count; i++) found += is_there[i] & 1;
    }
    return found;
}

void hz_log_touch(void *block)
{
    const int saved = errno;
    const size_t bytes = hz_next.usable_size(block);
    if (bytes >= hz_log_touch_bytes && bytes > 0) {
        const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
        const uintptr_t before = (uintptr_t)block % page_bytes;
        const size_t pages = (before + bytes + page_bytes - 1) / page_bytes;
        const size_t resident =
            resident_pages((unsigned char *)block - before, pages, page_bytes) * page_bytes;
        hz_log_event(HZ_LOG_TOUCHED, block, resident < bytes ? resident : bytes);
    }
    errno = saved;
}
