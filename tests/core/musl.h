/*
 * Included before each test where the C library is musl: what hz defines there, and musl's headers
 * do not declare.
 */
#ifndef TEST_MUSL_H
#define TEST_MUSL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int malloc_trim(size_t pad);
void *pvalloc(size_t size);

#ifdef __cplusplus
}
#endif

#endif
