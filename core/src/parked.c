/*
 * Suspicious blocks: what is done about them, and where a free block may wait.
 *
 * A block that is freed although it has its seal was freed twice, or the program has stored there
 * what it once read from the free block. Only a search of the places where free blocks wait can
 * tell. If another thread moves the block from one place to another meanwhile, the search may miss
 * it; then the second free is noticed when the block would be handed out.
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
    const uint32_t shard = hz_info_at(block)->shard;
    for (const hz_heap *heap = hz_heap_first(); heap != NULL; heap = heap->next) {
        if (hz_magazine_holds(heap, class_, block) || hz_remote_holds(heap, block)) return true;
    }
    return hz_inbox_holds(shard, block) || hz_depot_holds(shard, class_, block) ||
           hz_span_holds(shard, class_, block);
}
