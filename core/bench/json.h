/*
 * A small JSON writer: objects, arrays, members, commas and escapes. One value is written to one
 * stream.
 */
#ifndef HZ_BENCH_JSON_H
#define HZ_BENCH_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct hz_json {
    FILE *out;    /* where it goes */
    bool follows; /* whether the next member follows another one and needs a comma */
} hz_json;

/* `key` is the member's name, or NULL for an element of an array and for the outermost value. */
void hz_json_object(hz_json *json, const char *key);
void hz_json_object_end(hz_json *json);
void hz_json_array(hz_json *json, const char *key);
void hz_json_array_end(hz_json *json);
void hz_json_int(hz_json *json, const char *key, int64_t value);
/* A number that is not finite becomes null. */
void hz_json_double(hz_json *json, const char *key, double value);
void hz_json_bool(hz_json *json, const char *key, bool value);
void hz_json_null(hz_json *json, const char *key);
void hz_json_string(hz_json *json, const char *key, const char *text);
/* A string of `size` bytes that need not be text: what is not UTF-8 becomes U+FFFD. */
void hz_json_bytes(hz_json *json, const char *key, const char *bytes, size_t size);
/* `text` is JSON already. */
void hz_json_raw(hz_json *json, const char *key, const char *text, size_t size);
/* The same, or null where there are none; without the ends of lines behind it. */
void hz_json_report(hz_json *json, const char *key, const char *bytes, size_t size);
/* Ends the outermost object and its line, and flushes it. */
void hz_json_end_line(hz_json *json);

#endif
