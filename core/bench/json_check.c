/*
 * Whether a text is a JSON object: what another process wrote may be embedded only then.
 */
#include "json.h"

#include <string.h>

enum { DEPTH_MAX = 32 };

typedef struct cursor {
    const char *at;  /* next character */
    const char *end; /* past the last one */
} cursor;

static bool skip_value(cursor *c, int depth);

static void skip_space(cursor *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) != NULL && *c->at != '\0') c->at++;
}

static bool accept(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

static bool is_hex(char character)
{
    return character != '\0' && strchr("0123456789abcdefABCDEF", character) != NULL;
}

static bool skip_escape(cursor *c)
{
    if (c->at == c->end) return false;
    const char kind = *c->at++;
    if (kind != 'u') return kind != '\0' && strchr("\"\\/bfnrt", kind) != NULL;
    for (int i = 0; i < 4; i++, c->at++)
        if (c->at == c->end || !is_hex(*c->at)) return false;
    return true;
}

static bool skip_string(cursor *c)
{
    if (!accept(c, '"')) return false;
    while (c->at < c->end) {
        const unsigned char character = (unsigned char)*c->at++;
        if (character == '"') return true;
        if (character < 0x20) return false;
        if (character == '\\' && !skip_escape(c)) return false;
    }
    return false;
}

static bool skip_digits(cursor *c)
{
    const char *start = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9') c->at++;
    return c->at > start;
}

static bool skip_number(cursor *c)
{
    (void)accept(c, '-');
    const bool zero = c->at < c->end && *c->at == '0';
    const char *start = c->at;
    if (!skip_digits(c) || (zero && c->at > start + 1)) return false;
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!skip_digits(c)) return false;
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        if (c->at < c->end && (*c->at == '+' || *c->at == '-')) c->at++;
        return skip_digits(c);
    }
    return true;
}

static bool skip_word(cursor *c, const char *word)
{
    const size_t length = strlen(word);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
    c->at += length;
    return true;
}

static bool skip_member(cursor *c, int depth, bool named)
{
    if (named && (!skip_string(c) || !accept(c, ':'))) return false;
    return skip_value(c, depth);
}

/* What stands between brackets: members, or named members. */
static bool skip_members(cursor *c, int depth, char closing)
{
    if (accept(c, closing)) return true;
    do {
        if (!skip_member(c, depth, closing == '}')) return false;
    } while (accept(c, ','));
    return accept(c, closing);
}

static bool skip_value(cursor *c, int depth)
{
    skip_space(c);
    if (c->at == c->end || depth == DEPTH_MAX) return false;
    switch (*c->at) {
    case '{':
        c->at++;
        return skip_members(c, depth + 1, '}');
    case '[':
        c->at++;
        return skip_members(c, depth + 1, ']');
    case '"':
        return skip_string(c);
    case 't':
        return skip_word(c, "true");
    case 'f':
        return skip_word(c, "false");
    case 'n':
        return skip_word(c, "null");
    default:
        return skip_number(c);
    }
}

bool hz_json_is_object(const char *text, size_t size)
{
    cursor c = {text, text + size};
    skip_space(&c);
    if (c.at == c.end || *c.at != '{' || !skip_value(&c, 0)) return false;
    skip_space(&c);
    return c.at == c.end;
}
