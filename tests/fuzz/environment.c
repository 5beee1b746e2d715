/*
 * The parser of the environment: the bytes are the variables, each ended by a zero byte.
 *
 * Whatever they are, hz ends up with a configuration that its own table allows, has allocated
 * nothing, and has said whole lines only; what is not refused is in effect. start.c is compiled
 * into this program, as its functions are its own.
 */
#include "target.h"

#include <setjmp.h>

#include "check.h"

static void said(const char *text, size_t length);
static _Noreturn void given_up(int status);
#define hz_message said
#define hz_os_exit given_up
#include "start.c"

enum { VARIABLES_MAX = 64, BYTES_MAX = 1 << 14, REJECTED = 78 };

static jmp_buf start_of_input;
static settings asked;
static size_t line_count; /* lines that were said */

static void said(const char *text, size_t length)
{
    require(length > 4 && length < MESSAGE_BYTES, "a message of %zu bytes", length);
    require(memcmp(text, "hz: ", 4) == 0, "a message begins otherwise");
    require(text[length] == '\0' && strlen(text) == length, "a message ends in its middle");
    require(text[length - 1] == '\n', "a line does not end");
    line_count++;
}

static _Noreturn void given_up(int status)
{
    require(asked.strict && status == REJECTED && line_count > 0, "ended with %d", status);
    longjmp(start_of_input, 1);
}

/* Allocations since the input began; hz may not need itself to read its configuration. */
static size_t allocation_count;

#ifdef __SANITIZE_ADDRESS__
int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void *, size_t),
                                              void (*)(const volatile void *));

static void allocated(const volatile void *block, size_t size)
{
    (void)block, (void)size;
    allocation_count++;
}

static void freed(const volatile void *block)
{
    (void)block;
}

__attribute__((constructor)) static void count_allocations(void)
{
    (void)__sanitizer_install_malloc_and_free_hooks(allocated, freed);
}
#elif !defined(__clang__) && defined(__GLIBC__)
void *__libc_malloc(size_t);
void *malloc(size_t size);
void *malloc(size_t size)
{
    allocation_count++;
    return __libc_malloc(size);
}
#endif

/* What is in effect is legal, and is what the last legal value of each variable says. */
static void require_in_effect(char *const *variables)
{
    char message[MESSAGE_BYTES], text[64];
    hz_config alone = hz_cfg_built;
    require(hz_config_check(&hz_cfg, message, sizeof message), "in effect: %s", message);
    for (; *variables != NULL; variables++) {
        size_t index;
        const hz_param *param = param_of(*variables, &index);
        if (param == NULL) continue;
        (void)hz_config_set(&alone, index, strchr(*variables, '=') + 1, message, sizeof message);
    }
    if (!hz_config_check(&alone, message, sizeof message)) alone = hz_cfg_built;
    for (size_t i = 0; i < hz_param_count(); i++) {
        hz_config_text(&hz_cfg, i, text, sizeof text);
        require(hz_config_get(&hz_cfg, i) == hz_config_get(&alone, i), "%s is %s",
                hz_param_at(i)->name, text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static char text[BYTES_MAX + 1];
    static char *variables[VARIABLES_MAX + 1];
    char **const own = environ;
    size_t variable_count = 0;
    if (count > BYTES_MAX) count = BYTES_MAX;
    memcpy(text, bytes, count);
    text[count] = '\0';
    for (char *at = text; at < text + count && variable_count < VARIABLES_MAX; at += strlen(at) + 1)
        variables[variable_count++] = at;
    variables[variable_count] = NULL;
    line_count = allocation_count = 0;
    environ = variables;
    const bool is_first_time = setjmp(start_of_input) == 0;
    if (is_first_time) {
        hz_atomic_poke(&process.done, 0);
        configure(&asked);
        hz_cfg_put(&asked.config);
        require(allocation_count == 0, "%zu blocks were allocated", allocation_count);
        require_in_effect(variables);
    }
    environ = own;
    return 0;
}
