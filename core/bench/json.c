/*
 * The JSON writer: see json.h.
 */
#include "json.h"

#include <math.h>
#include <string.h>

/* Length of the UTF-8 sequence at `bytes`, or 0 when there is none (RFC 3629). */
static size_t utf8_length(const unsigned char *bytes, size_t size)
{
    const unsigned char first = bytes[0];
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    const size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (length > size) return 0;
    for (size_t i = 1; i < length; i++)
        if ((bytes[i] & 0xc0) != 0x80) return 0;
    const bool overlong = (first == 0xe0 && bytes[1] < 0xa0) || (first == 0xf0 && bytes[1] < 0x90);
    const bool beyond = (first == 0xed && bytes[1] > 0x9f) || (first == 0xf4 && bytes[1] > 0x8f);
    return overlong || beyond ? 0 : length;
}

static void write_character(FILE *out, const unsigned char *bytes, size_t length)
{
    if (bytes[0] == '"' || bytes[0] == '\\')
        (void)fprintf(out, "\\%c", bytes[0]);
    else if (bytes[0] < 0x20 || bytes[0] == 0x7f)
        (void)fprintf(out, "\\u%04x", bytes[0]);
    else
        (void)fwrite(bytes, 1, length, out);
}

static void write_quoted(FILE *out, const char *text, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)text;
    (void)fputc('"', out);
    for (size_t i = 0; i < size;) {
        const size_t length = utf8_length(bytes + i, size - i);
        if (length == 0)
            (void)fputs("\\ufffd", out);
        else
            write_character(out, bytes + i, length);
        i += length == 0 ? 1 : length;
    }
    (void)fputc('"', out);
}

static void value_start(hz_json *json, const char *key)
{
    if (json->follows) (void)fputc(',', json->out);
    json->follows = true;
    if (key != NULL) {
        write_quoted(json->out, key, strlen(key));
        (void)fputc(':', json->out);
    }
}

static void open_with(hz_json *json, const char *key, char bracket)
{
    value_start(json, key);
    (void)fputc(bracket, json->out);
    json->follows = false;
}

static void close_with(hz_json *json, char bracket)
{
    (void)fputc(bracket, json->out);
    json->follows = true;
}

void hz_json_object(hz_json *json, const char *key)
{
    open_with(json, key, '{');
}
void hz_json_object_end(hz_json *json)
{
    close_with(json, '}');
}
void hz_json_array(hz_json *json, const char *key)
{
    open_with(json, key, '[');
}
void hz_json_array_end(hz_json *json)
{
    close_with(json, ']');
}

void hz_json_int(hz_json *json, const char *key, int64_t value)
{
    value_start(json, key);
    (void)fprintf(json->out, "%lld", (long long)value);
}

void hz_json_double(hz_json *json, const char *key, double value)
{
    if (!isfinite(value)) {
        hz_json_null(json, key);
        return;
    }
    value_start(json, key);
    (void)fprintf(json->out, "%.9g", value);
}

void hz_json_bool(hz_json *json, const char *key, bool value)
{
    value_start(json, key);
    (void)fputs(value ? "true" : "false", json->out);
}

void hz_json_null(hz_json *json, const char *key)
{
    value_start(json, key);
    (void)fputs("null", json->out);
}

void hz_json_string(hz_json *json, const char *key, const char *text)
{
    hz_json_bytes(json, key, text, strlen(text));
}

void hz_json_bytes(hz_json *json, const char *key, const char *bytes, size_t size)
{
    value_start(json, key);
    write_quoted(json->out, bytes, size);
}

void hz_json_report(hz_json *json, const char *key, const char *bytes, size_t size)
{
    while (size > 0 && bytes[size - 1] == '\n') size--;
    if (size > 0)
        hz_json_bytes(json, key, bytes, size);
    else
        hz_json_null(json, key);
}

void hz_json_raw(hz_json *json, const char *key, const char *text, size_t size)
{
    value_start(json, key);
    (void)fwrite(text, 1, size, json->out);
}

void hz_json_end_line(hz_json *json)
{
    hz_json_object_end(json);
    (void)fputc('\n', json->out);
    (void)fflush(json->out);
    json->follows = false;
}
