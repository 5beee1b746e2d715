/*
 * hz-bench: runs one allocation workload with whatever malloc this process has, and reports it.
 */
#include "bench.h"

int main(int argc, char **argv)
{
    hz_options options;
    hz_run run;
    hz_result result;

    hz_options_parse(&options, argc, argv);
    if (options.list) {
        hz_list_print(&options);
        return 0;
    }
    hz_run_init(&run, &options);
    hz_run_execute(&run, &result);
    return hz_report_run(&run, &result);
}
