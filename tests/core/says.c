/*
 * A program that is linked to hz and prints what hz runs with: {"privileged": bool, "hz":
 * hz_stats_json}; or, called with --table, the table of parameters: a JSON object a line.
 */
#include <hz/hz.h>
#include <hz/params.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>

static void print_row(const hz_param *row)
{
    printf("{\"name\":\"%s\",\"env\":\"%s\",\"default\":\"%s\",\"low\":%" PRId64
           ",\"high\":%" PRId64,
           row->name, row->env, row->default_text, row->low, row->high);
    printf(",\"choices\":\"%s\"}\n", row->choices);
}

static int print_table(void)
{
    for (size_t i = 0; i < hz_param_count(); i++) print_row(hz_param_at(i));
    return 0;
}

int main(int argc, char **argv)
{
    static char json[65536];
    if (argc == 2 && strcmp(argv[1], "--table") == 0) return print_table();
    hz_free(hz_malloc(100));
    if (hz_stats_json(json, sizeof json) >= sizeof json) return 1;
    printf("{\"privileged\":%s,\"hz\":%s}\n", getauxval(AT_SECURE) != 0 ? "true" : "false", json);
    return 0;
}
