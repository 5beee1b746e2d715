/*
 * The names of the malloc family as hz.h has them, for programs that link hz and leave the C
 * library's malloc alone. Included before everything else: the headers are taken in first, so that
 * only the program's own calls change.
 */
#ifndef TEST_LINKED_H
#define TEST_LINKED_H

#include <hz/hz.h>

#include <malloc.h>
#include <stdlib.h>

#define malloc hz_malloc
#define calloc hz_calloc
#define realloc hz_realloc
#define free hz_free
#define memalign hz_memalign
#define aligned_alloc hz_aligned_alloc
#define posix_memalign hz_posix_memalign
#define malloc_usable_size hz_usable_size
#define malloc_trim(pad) hz_trim()

#endif
