/* The main of a test program that has none of its own. */
#include "check.h"

int main(int argc, char **argv)
{
    return run_checks(argc, argv);
}
