/*
 * What is done about a block that is not as it should be, and where a free block may wait: the look
 * that a suspicion costs.
 *
 * A block that is freed with its seal in place was freed twice, or the program has stored what it
 * once saw in a free block there. Only where free blocks wait can tell. A block that another thread
 * moves from one of these places to another meanwhile may be missed: then it is noticed when it
 * would be handed out.
 */
#include "internal.h"

void hz_leave_out(const void *block)
{
    if (hz_is_unsealed(block)) hz_die("a block was freed twice", block);
    if (hz_is_hardened()) hz_die("a block was written to after it had been freed", block);
    hz_count(HZ_STAT_blocks_spoiled, 1);
    hz_warn_once("a block was written to after it had been freed; it stays out of use", block);
}

bool hz_is_parked(const void *block, uint32_t class_)
{
    const uint32_t shard = hz_map.spans[hz_page_of(block)].shard;
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        if (hz_magazine_holds(heap, class_, block) || hz_remote_holds(heap, block)) return true;
    }
    return hz_inbox_holds(shard, block) || hz_depot_holds(shard, class_, block) ||
           hz_span_holds(shard, class_, block);
}
