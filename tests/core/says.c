/* A program that is linked to hz and prints what hz runs with: {"privileged": bool, "hz":
 * hz_stats_json}. */
#include <hz/hz.h>

#include <stdio.h>
#include <sys/auxv.h>

int main(void)
{
    static char json[65536];
    hz_free(hz_malloc(100));
    if (hz_stats_json(json, sizeof json) >= sizeof json) return 1;
    printf("{\"privileged\":%s,\"hz\":%s}\n", getauxval(AT_SECURE) != 0 ? "true" : "false", json);
    return 0;
}
