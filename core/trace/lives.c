/*
 * Which blocks live: see lives.h. Open addressing; what is taken out leaves no mark.
 *
 * The addresses are the words of a file. The factor that spreads them is drawn anew in each
 * process, and the highest bits of the product decide: no file can have all of them meet.
 */
#include "lives.h"

#include <stdlib.h>
#include <unistd.h>

#include "arguments.h"

enum { FIRST_SLOTS = 1 << 12 };

void hz_lives_make(hz_lives *lives)
{
    *lives = (hz_lives){.mask = FIRST_SLOTS - 1};
    if (getentropy(&lives->factor, sizeof lives->factor) != 0) hz_fail("no random number");
    lives->factor |= 1;
    lives->slots = calloc(FIRST_SLOTS, sizeof *lives->slots);
    if (lives->slots == NULL) hz_fail("no memory for the blocks that live");
}

void hz_lives_drop(hz_lives *lives)
{
    free(lives->slots);
    *lives = (hz_lives){0};
}

static size_t home(const hz_lives *lives, uint64_t address)
{
    return (size_t)((address * lives->factor) >> __builtin_clzll(lives->mask));
}

/* The slot of an address, or the empty one where it would stand. */
static size_t lives_slot(const hz_lives *lives, uint64_t address)
{
    size_t at = home(lives, address);
    while (lives->slots[at].address != 0 && lives->slots[at].address != address)
        at = (at + 1) & lives->mask;
    return at;
}

uint64_t hz_lives_find(const hz_lives *lives, uint64_t address)
{
    const struct hz_life *life = &lives->slots[lives_slot(lives, address)];
    return life->address == address && address != 0 ? life->step : HZ_NO_STEP;
}

uint64_t hz_lives_take(hz_lives *lives, uint64_t address)
{
    size_t hole = lives_slot(lives, address);
    if (lives->slots[hole].address != address || address == 0) return HZ_NO_STEP;
    const uint64_t step = lives->slots[hole].step;
    for (size_t at = (hole + 1) & lives->mask; lives->slots[at].address != 0;
         at = (at + 1) & lives->mask) {
        const size_t wanted = home(lives, lives->slots[at].address);
        if (((at - wanted) & lives->mask) < ((at - hole) & lives->mask)) continue;
        lives->slots[hole] = lives->slots[at];
        hole = at;
    }
    lives->slots[hole].address = 0;
    lives->count--;
    return step;
}

static void lives_grow(hz_lives *lives)
{
    hz_lives larger = *lives;
    larger.mask = 2 * lives->mask + 1;
    larger.slots = calloc(larger.mask + 1, sizeof *larger.slots);
    if (larger.slots == NULL) hz_fail("no memory for %zu blocks that live", lives->count);
    for (size_t i = 0; i <= lives->mask; i++)
        if (lives->slots[i].address != 0)
            larger.slots[lives_slot(&larger, lives->slots[i].address)] = lives->slots[i];
    free(lives->slots);
    *lives = larger;
}

void hz_lives_put(hz_lives *lives, uint64_t address, uint64_t step)
{
    if (2 * lives->count > lives->mask) lives_grow(lives);
    const size_t at = lives_slot(lives, address);
    lives->slots[at] = (struct hz_life){address, step};
    lives->count++;
}
