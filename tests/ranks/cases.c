/*
 * cases.c - the list of the cases.
 */
#include "tests/ranks/cases.h"

#include "tests/ranks/cases_internal.h"

const rank_case_t rank_cases[] = {
    {"collectives", case_collectives, 1, DP_OK, 0},
    {"fused", case_fused, 1, DP_OK, 0},
    {"grouped", case_grouped, 1, DP_OK, 0},
    {"scales", case_scales, 1, DP_OK, 0},
    {"wire", case_wire, 1, DP_OK, 0},
    {"bit_equal", case_bit_equal, 1, DP_OK, 0},
    {"handles", case_handles, 1, DP_OK, 0},
    {"arguments", case_arguments, 1, DP_OK, 0},
    {"mismatch", case_mismatch, 2, DP_OK, 0},
    {"left", case_left, 2, DP_OK, 0},
    {"left_crosswise", case_left_crosswise, 2, DP_OK, 0},
    {"abort", case_abort, 1, DP_ERR_ABORTED, 0},
    {"threads", case_threads, 1, DP_OK, 0},
    {"gradients", case_gradients, 1, DP_OK, 0},
    {"gradients_order", case_gradients_order, 1, DP_OK, 0},
    {"gradients_lists", case_gradients_lists, 2, DP_OK, 0},
    {"overflow", case_overflow, 1, DP_OK, 0},
    {"check", case_check, 2, DP_OK, 1},
    {"check_weights", case_check_weights, 2, DP_OK, 1},
    {"large", case_large, 1, DP_OK, 0},
};
const int rank_case_count = sizeof(rank_cases) / sizeof(rank_cases[0]);
