/*
 * parity_process.c - runs the cases on ranks that are processes, under dprun, over UCX.
 *
 *     dprun -np N parity_process CASE|all
 *     parity_process --list
 */
#include "tests/parity/parity.h"

int main(int argc, char **argv)
{
    dp_context_t *dp;
    int failed, rank;

    if (argc != 2) {
        fprintf(stderr, "usage: dprun -np N parity_process CASE|all, or parity_process --list\n");
        return 2;
    }
    if (strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < parity_case_count; i++)
            printf("%s\n", parity_cases[i].name);
        return 0;
    }
    if (dp_init(NULL, &dp) != DP_OK) return 1;
    rank = dp_rank(dp);
    failed = parity_run(dp, argv[1]);
    if (failed) dp_abort(dp, "a case failed"); /* the others need not wait for the missing half */
    if (dp_finalize(dp) != DP_OK) failed = failed == 0 ? 1 : failed;
    if (!parity_left_registrations_are_intact(rank)) {
        fprintf(stderr, "rank %d: what was left registered has other contents\n", rank);
        failed = 1;
    }
    return failed;
}
