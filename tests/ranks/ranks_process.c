/*
 * ranks_process.c - runs a case on ranks that are processes, under dprun, over UCX.
 *
 *     dprun -np N ranks_process CASE...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ranks/cases.h"

int main(int argc, char **argv)
{
    const rank_case_t *what = NULL;
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_context_t *dp;
    dp_status_t status;
    int failed;

    for (int i = 0; argc == 2 && i < rank_case_count; i++)
        if (strcmp(argv[1], rank_cases[i].name) == 0) what = &rank_cases[i];
    if (what == NULL) {
        fprintf(stderr, "usage: dprun -np N ranks_process CASE\n");
        return 2;
    }
    if (what->check) setenv("DP_CHECK_DATA", "1", 1);
    if (strncmp(what->name, PROGRAM_PREFIX, strlen(PROGRAM_PREFIX)) == 0)
        options.order = DP_ORDER_PROGRAM;
    if (dp_init(&options, &dp) != DP_OK) return 1;
    failed = what->run(dp);
    if (failed) dp_abort(dp, "the case has failed"); /* else an operation under way may keep it */
    status = dp_finalize(dp);
    if (!failed && status != what->finalize) {
        fprintf(stderr, "%s: dp_finalize: %s\n", what->name, dp_status_string(status));
        failed = 1;
    }
    return failed;
}
