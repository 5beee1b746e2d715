/*
 * When each free page that is resident was freed.
 *
 * There is a time for each page. If all pages of a chunk have the same one, it is stored once, and
 * the pages' own times are not touched: so the free of a terabyte costs hardly any memory and time
 * here. The page pool's lock guards all of it but where a chunk's times lie. The thread that
 * extends the arena notes that, before the chunk has pages.
 */
#include "internal.h"

enum {
    CHUNK_SHIFT = 13, /* pages of a chunk: 512 MiB */
    CHUNK_PAGES = 1 << CHUNK_SHIFT,
    CHUNKS = 1 << 15,
};

/* The times of the pages of a chunk; made where the arena has pages. */
typedef struct chunk {
    uint32_t *ms;    /* by page, 0 where it is not dirty; valid if `is_mixed` */
    uint32_t all_ms; /* else: the time of all its pages */
    uint32_t dirty;  /* how many pages have a time */
    bool is_mixed;   /* whether they differ; only then is `ms` written */
    bool is_blank;   /* `ms` was never written, and reads as zero */
} chunk;

static chunk chunks[CHUNKS];

static chunk *chunk_of(size_t page)
{
    return &chunks[page >> CHUNK_SHIFT];
}

uint32_t hz_freed_ms(size_t page)
{
    const chunk *this = chunk_of(page);
    return this->is_mixed ? this->ms[page % CHUNK_PAGES] : this->all_ms;
}

bool hz_freed_make(size_t first, size_t pages)
{
    const size_t last = (first + pages - 1) >> CHUNK_SHIFT;
    for (size_t i = first >> CHUNK_SHIFT; i <= last; i++) {
        if (i >= CHUNKS) return false;
        if (chunks[i].ms != NULL) continue;
        chunks[i].ms = hz_meta_alloc(sizeof(uint32_t) * CHUNK_PAGES);
        if (chunks[i].ms == NULL) return false;
        chunks[i].is_blank = true;
    }
    return true;
}

static void chunk_mix(chunk *this)
{
    const bool is_done = this->is_blank && this->all_ms == 0;
    (void)hz_plain_swap(&this->is_blank, false); /* before the child of a fork could find times */
    for (size_t i = 0; i < CHUNK_PAGES && !is_done; i++) this->ms[i] = this->all_ms;
    this->is_mixed = true;
}

static void page_put(chunk *this, size_t page, uint32_t now_ms)
{
    uint32_t *ms = &this->ms[page % CHUNK_PAGES];
    if (*ms != 0) this->dirty--;
    if (now_ms != 0) this->dirty++;
    *ms = now_ms;
}

void hz_freed_put(size_t first, size_t pages, uint32_t now_ms)
{
    for (size_t page = first, end = first + pages; page < end;) {
        chunk *this = chunk_of(page);
        if (page % CHUNK_PAGES == 0 && end - page >= CHUNK_PAGES) {
            this->all_ms = now_ms;
            this->dirty = now_ms != 0 ? CHUNK_PAGES : 0;
            this->is_mixed = false;
            page += CHUNK_PAGES;
        } else {
            if (!this->is_mixed) chunk_mix(this);
            page_put(this, page++, now_ms);
        }
    }
}

void hz_freed_forget(size_t pages)
{
    for (size_t page = 0; page < pages; page += CHUNK_PAGES) {
        chunk *this = chunk_of(page);
        this->all_ms = this->dirty = 0;
        this->is_mixed = false;
    }
}

static bool is_alike(const chunk *this)
{
    return !this->is_mixed || this->dirty == 0;
}

size_t hz_freed_alike_below(size_t page)
{
    return is_alike(chunk_of(page)) ? page & ~(size_t)(CHUNK_PAGES - 1) : page;
}

size_t hz_freed_alike_above(size_t page)
{
    return is_alike(chunk_of(page)) ? page | (CHUNK_PAGES - 1) : page;
}
