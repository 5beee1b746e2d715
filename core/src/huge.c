/*
 * Huge pages for short blocks (thp=adaptive): their spans are cut from one after the other, and all
 * other pages of the arena are declined.
 */
#include "os.h"
#include "pages.h"

static void huge_end(uint32_t node)
{
    const hz_page_info *rest = hz_page_pool.huge[node];
    hz_page_pool.huge[node] = NULL;
    if (rest != NULL) hz_run_list_dirty(hz_info_page(rest), rest->pages, node, hz_os_now_ms());
}

/* The last pages of what is left of the node's huge page. */
static hz_page_info *huge_cut(size_t pages, uint32_t node)
{
    hz_page_info *rest = hz_page_pool.huge[node];
    if (rest == NULL || rest->pages < pages) return NULL;
    if (rest->pages == pages) {
        hz_page_pool.huge[node] = NULL;
        return rest;
    }
    const size_t left = rest->pages - pages;
    hz_run_resize(rest, left);
    hz_page_info *run = hz_run_mark(hz_info_page(rest) + left, pages, HZ_RUN_NONE, node);
    hz_plain_put(&run->state, (uint8_t)HZ_RUN_OUT);
    return run;
}

/* One more, by one thread at a time; the others take other pages meanwhile. The lock is held, and
 * released while the system is asked. */
static void huge_add(uint32_t node)
{
    bool zeroed, is_resident = false;
    hz_page_pool.asker = hz_lock_me();
    hz_lock_release(&hz_page_pool.lock);
    hz_page_info *run = hz_pages_alloc(HZ_HUGE_PAGES, HZ_HUGE_PAGES, node, &zeroed);
    hz_plain_put(&hz_page_pool.asked, run);
    if (run != NULL) is_resident = hz_arena_touch_huge(hz_info_page(run));
    hz_lock_take(&hz_page_pool.lock);
    hz_plain_put(&hz_page_pool.asked, NULL);
    hz_page_pool.asker = 0;
    hz_page_pool.huge_pages += HZ_HUGE_PAGES; /* also in vain: near a limit that takes long */
    if (run == NULL) return;
    huge_end(node);
    hz_page_pool.huge[node] = run;
    if (!is_resident) huge_end(node);
}

/* Of a huge page that goes back in part the kernel keeps the rest for long: so no more are taken in
 * all than short blocks hold. */
hz_page_info *hz_pages_alloc_huge(size_t pages, uint32_t node, size_t most)
{
    hz_page_info *run = NULL;
    hz_lock_take(&hz_page_pool.lock);
    if (hz_page_pool.dirty[node].filled == 0) {
        run = huge_cut(pages, node);
        if (run == NULL && hz_page_pool.asker == 0 && hz_page_pool.huge_pages < most) {
            huge_add(node);
            run = huge_cut(pages, node);
        }
    }
    hz_lock_release(&hz_page_pool.lock);
    return run;
}

void hz_pages_end_huge(void)
{
    hz_lock_take(&hz_page_pool.lock);
    for (uint32_t node = 0; node < hz_map.nodes; node++) huge_end(node);
    hz_lock_release(&hz_page_pool.lock);
}
