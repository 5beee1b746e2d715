/*
 * Building texts, and reading short ones; stands alone, so that the agent has it, too.
 */
#include "text.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include "os_call.h"

void hz_text_add(hz_text *text, const char *format, ...)
{
    va_list arguments;
    size_t left = text->length < text->size ? text->size - text->length : 0;
    va_start(arguments, format);
    int added = vsnprintf(left > 0 ? text->start + text->length : NULL, left, format, arguments);
    va_end(arguments);
    if (added > 0) text->length += (size_t)added;
}

static void add_character(hz_text *text, char character)
{
    if (character == '"' || character == '\\')
        hz_text_add(text, "\\%c", character);
    else if ((unsigned char)character < ' ')
        hz_text_add(text, "\\u%04x", (unsigned)character);
    else
        hz_text_add(text, "%c", character);
}

void hz_text_add_quoted(hz_text *text, const char *string)
{
    hz_text_add(text, "\"");
    for (; *string != '\0'; string++) add_character(text, *string);
    hz_text_add(text, "\"");
}

void hz_text_put(hz_text *text, const char *string)
{
    for (; *string != '\0'; string++, text->length++) {
        if (text->length + 1 >= text->size) continue;
        text->start[text->length] = *string;
        text->start[text->length + 1] = '\0';
    }
}

size_t hz_text_read(const char *path, char *text, size_t size)
{
    long length = 0;
    const long file = HZ_OS_CALL(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        length = HZ_OS_CALL(SYS_read, file, (long)text, (long)size - 1);
        (void)HZ_OS_CALL(SYS_close, file);
    }
    text[length > 0 ? length : 0] = '\0';
    return length > 0 ? (size_t)length : 0;
}
