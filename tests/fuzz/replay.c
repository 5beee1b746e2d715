/*
 * Runs a fuzz target on files, and on mutations of them, without libFuzzer.
 *
 *   PROGRAM [--mutate N] [--seconds S] [--seed S] [--first I] [--save FILE] FILE...
 *
 * Mutation I of a seed is always the same, whatever N: what fails is repeated with --first I
 * --mutate 1, and saved with --save FILE. A failure tells I on stderr.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "target.h"

enum { FILES_MAX = 1024, INPUT_MAX = 1 << 14, EDITS_MAX = 8 };

typedef struct input {
    uint8_t *bytes;
    size_t count;
} input;

static input inputs[FILES_MAX];
static size_t input_count;
static uint64_t now_at;

static uint64_t number_of(int argc, char **argv, const char *option, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], option) == 0) return strtoull(argv[i + 1], NULL, 10);
    return otherwise;
}

static void input_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    require(file != NULL && input_count < FILES_MAX, "cannot read %s", path);
    input *one = &inputs[input_count++];
    one->bytes = malloc(INPUT_MAX);
    require(one->bytes != NULL, "no memory");
    one->count = fread(one->bytes, 1, INPUT_MAX, file);
    (void)fclose(file);
}

/* ---- mutations ------------------------------------------------------------------------------- */

static const input *some_input(uint64_t *state)
{
    return &inputs[random_next(state) % input_count];
}

static void overwrite(uint8_t *bytes, size_t count, uint64_t *state)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, '=', '_', '0', '9', '-', 'H', 'Z'};
    const uint64_t draw = random_next(state);
    uint8_t *at = &bytes[(draw >> 8) % count];
    switch (draw % 3) {
    case 0:
        *at = (uint8_t)(*at ^ 1u << (draw >> 4) % 8);
        break;
    case 1:
        *at = edges[(draw >> 40) % sizeof edges];
        break;
    default:
        *at = (uint8_t)(draw >> 48);
    }
}

static size_t cut_out(uint8_t *bytes, size_t count, uint64_t *state)
{
    const size_t from = random_next(state) % count, rest = count - from;
    const size_t gone = random_next(state) % (rest < 64 ? rest : 64);
    memmove(bytes + from, bytes + from + gone, rest - gone);
    return count - gone;
}

/* Puts a part of another input in. */
static size_t put_in(uint8_t *bytes, size_t count, uint64_t *state)
{
    const input *other = some_input(state);
    if (other->count == 0) return count;
    const size_t from = random_next(state) % other->count, at = random_next(state) % count;
    size_t length = 1 + random_next(state) % 64;
    if (length > other->count - from) length = other->count - from;
    if (length > INPUT_MAX - count) length = INPUT_MAX - count;
    memmove(bytes + at + length, bytes + at, count - at);
    memcpy(bytes + at, other->bytes + from, length);
    return count + length;
}

static size_t mutate(uint8_t *bytes, uint64_t state)
{
    const input *base = some_input(&state);
    size_t count = base->count;
    memcpy(bytes, base->bytes, count);
    if (count == 0) bytes[count++] = 0;
    for (uint64_t edits = 1 + random_next(&state) % EDITS_MAX; edits > 0; edits--) {
        const uint64_t draw = random_next(&state) % 4;
        if (draw < 2)
            overwrite(bytes, count, &state);
        else if (draw == 2 && count > 1)
            count = cut_out(bytes, count, &state);
        else
            count = put_in(bytes, count, &state);
    }
    return count;
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

static void save(const char *path, const uint8_t *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    require(file != NULL && fwrite(bytes, 1, count, file) == count, "cannot write %s", path);
    (void)fclose(file);
}

static uint64_t now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec;
}

static const char *text_of(int argc, char **argv, const char *option)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], option) == 0) return argv[i + 1];
    return NULL;
}

int main(int argc, char **argv)
{
    static uint8_t bytes[2 * INPUT_MAX];
    const uint64_t seed = number_of(argc, argv, "--seed", 1);
    const uint64_t first = number_of(argc, argv, "--first", 0);
    const uint64_t mutations = number_of(argc, argv, "--mutate", 0);
    const uint64_t seconds = number_of(argc, argv, "--seconds", 0);
    const char *saved = text_of(argc, argv, "--save");
    (void)signal(SIGABRT, tell_where);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0)
            i++;
        else
            input_read(argv[i]);
    require(input_count > 0, "no input");
    for (size_t i = 0; i < input_count; i++)
        (void)LLVMFuzzerTestOneInput(inputs[i].bytes, inputs[i].count);
    const uint64_t end_s = now_s() + seconds;
    for (now_at = first; now_at < first + mutations || (seconds > 0 && now_s() < end_s); now_at++) {
        const size_t count = mutate(bytes, seed * UINT64_C(0x9e3779b97f4a7c15) + now_at);
        if (saved != NULL) save(saved, bytes, count);
        (void)LLVMFuzzerTestOneInput(bytes, count);
    }
    printf("%zu inputs, %llu mutations of seed %llu\n", input_count,
           (unsigned long long)(now_at - first), (unsigned long long)seed);
    return 0;
}
