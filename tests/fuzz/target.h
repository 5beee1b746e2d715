/*
 * What libFuzzer and replay.c call.
 */
#ifndef FUZZ_TARGET_H
#define FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/* Does what the bytes say; ends the process when something does not hold. The result is 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#endif
