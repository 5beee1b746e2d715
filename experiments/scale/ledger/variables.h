/*
 * Numbers in variables of the environment, for both libraries.
 */
#ifndef HZ_LEDGER_VARIABLES_H
#define HZ_LEDGER_VARIABLES_H

#include <stdint.h>
#include <stdlib.h>

static inline uint64_t hz_ledger_number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

#endif
