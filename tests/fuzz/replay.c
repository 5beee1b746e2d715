/*
 * Runs a fuzz target on files, and on mutations of them, without libFuzzer.
 *
 *   PROGRAM [--mutate N] [--seed S] [--first I] [--save FILE] FILE...
 *
 * Mutation I of a seed is always the same, whatever N: what fails is repeated with --first I
 * --mutate 1, and saved with --save FILE. A failure tells I on stderr.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "target.h"

enum { FILES_MAX = 1024, INPUT_MAX = 1 << 14, EDITS_MAX = 8, PART_MAX = 64 };

typedef struct input {
    uint8_t bytes[2 * INPUT_MAX];
    size_t count;
} input;

static input *inputs[FILES_MAX];
static size_t input_count;
static uint64_t now_at;

static struct {
    const char *name, *value;
} options[] = {{"--mutate", "0"}, {"--seed", "1"}, {"--first", "0"}, {"--save", NULL}};
enum { MUTATE, SEED, FIRST, SAVE };

static void input_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    input *one = inputs[input_count++] = calloc(1, sizeof *one);
    require(file != NULL && one != NULL && input_count < FILES_MAX, "cannot read %s", path);
    one->count = fread(one->bytes, 1, INPUT_MAX, file);
    (void)fclose(file);
}

/* Takes an option and its value, or a file. The result is how many words that were. */
static int word_read(const char *word, const char *next)
{
    for (size_t i = 0; i < COUNT(options); i++) {
        if (strcmp(word, options[i].name) != 0) continue;
        options[i].value = next;
        return 2;
    }
    input_read(word);
    return 1;
}

static uint64_t number(size_t option)
{
    return strtoull(options[option].value, NULL, 10);
}

/* ---- mutations ------------------------------------------------------------------------------- */

static const input *some_input(uint64_t *state)
{
    return inputs[random_next(state) % input_count];
}

static void overwrite(input *it, uint64_t *state)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, '=', '_', '0', '9', '-', 'H', 'Z'};
    const uint64_t draw = random_next(state);
    uint8_t *at = &it->bytes[(draw >> 8) % it->count];
    const uint8_t choices[] = {(uint8_t)(*at ^ 1u << (draw >> 4) % 8),
                               edges[(draw >> 40) % sizeof edges], (uint8_t)(draw >> 48)};
    *at = choices[draw % 3];
}

static void cut_out(input *it, uint64_t *state)
{
    const size_t from = random_next(state) % it->count, rest = it->count - from;
    const size_t gone = random_next(state) % (rest < PART_MAX ? rest : PART_MAX);
    memmove(it->bytes + from, it->bytes + from + gone, rest - gone);
    it->count -= gone;
}

/* Puts a part of another input in. */
static void put_in(input *it, uint64_t *state)
{
    const input *other = some_input(state);
    if (other->count == 0) return;
    const size_t from = random_next(state) % other->count, at = random_next(state) % it->count;
    size_t length = 1 + random_next(state) % PART_MAX;
    if (length > other->count - from) length = other->count - from;
    if (length > INPUT_MAX - it->count) length = INPUT_MAX - it->count;
    memmove(it->bytes + at + length, it->bytes + at, it->count - at);
    memcpy(it->bytes + at, other->bytes + from, length);
    it->count += length;
}

static void mutate(input *it, uint64_t state)
{
    *it = *some_input(&state);
    if (it->count == 0) it->count = 1;
    for (uint64_t edits = 1 + random_next(&state) % EDITS_MAX; edits > 0; edits--) {
        const uint64_t draw = random_next(&state) % 4;
        if (draw < 2)
            overwrite(it, &state);
        else if (draw == 2 && it->count > 1)
            cut_out(it, &state);
        else
            put_in(it, &state);
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void tell_where(int signal_number)
{
    char line[64];
    const int length =
        snprintf(line, sizeof line, "at mutation %llu\n", (unsigned long long)now_at);
    (void)!write(STDERR_FILENO, line, (size_t)length);
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

static void save(const input *it)
{
    FILE *file = fopen(options[SAVE].value, "wb");
    require(file != NULL && fwrite(it->bytes, 1, it->count, file) == it->count, "cannot write %s",
            options[SAVE].value);
    (void)fclose(file);
}

int main(int argc, char **argv)
{
    static input now;
    for (int i = 1; i < argc;) i += word_read(argv[i], argv[i + 1]);
    require(input_count > 0, "no input");
    (void)signal(SIGABRT, tell_where);
    for (size_t i = 0; i < input_count; i++)
        (void)LLVMFuzzerTestOneInput(inputs[i]->bytes, inputs[i]->count);
    for (now_at = number(FIRST); now_at < number(FIRST) + number(MUTATE); now_at++) {
        mutate(&now, number(SEED) * UINT64_C(0x9e3779b97f4a7c15) + now_at);
        if (options[SAVE].value != NULL) save(&now);
        (void)LLVMFuzzerTestOneInput(now.bytes, now.count);
    }
    printf("%zu inputs, %s mutations of seed %s\n", input_count, options[MUTATE].value,
           options[SEED].value);
    return 0;
}
