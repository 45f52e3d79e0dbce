/*
 * cases_internal.h - how the cases check: a failed one prints rank, place and both sides.
 */
#ifndef DP_TESTS_CASES_INTERNAL_H
#define DP_TESTS_CASES_INTERNAL_H

#include <stdio.h>
#include <string.h>

#include "dp.h"

#define EXPECT(dp, condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d of %d: %s: ", __FILE__, __LINE__, dp_rank(dp),         \
                    dp_size(dp), #condition);                                                      \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* A call answers this status. */
#define EXPECT_STATUS(dp, call, wanted)                                                            \
    do {                                                                                           \
        dp_status_t found_ = (call);                                                               \
        dp_status_t wanted_ = (wanted);                                                            \
        EXPECT(dp, found_ == wanted_, "%s answered %s, wanted %s; %s", #call,                      \
               dp_status_string(found_), dp_status_string(wanted_), dp_error_text(dp));            \
    } while (0)

#define EXPECT_TEXT(dp, text, part)                                                                \
    EXPECT(dp, strstr((text), (part)) != NULL, "\"%s\" lacks \"%s\"", (text), (part))

int case_collectives(dp_context_t *dp);
int case_fused(dp_context_t *dp);
int case_grouped(dp_context_t *dp);
int case_scales(dp_context_t *dp);
int case_wire(dp_context_t *dp);
int case_bit_equal(dp_context_t *dp);
int case_large(dp_context_t *dp);

int case_handles(dp_context_t *dp);
int case_arguments(dp_context_t *dp);
int case_mismatch(dp_context_t *dp);
int case_left(dp_context_t *dp);
int case_left_crosswise(dp_context_t *dp);
int case_abort(dp_context_t *dp);
int case_threads(dp_context_t *dp);

int case_gradients(dp_context_t *dp);
int case_gradients_order(dp_context_t *dp);
int case_gradients_lists(dp_context_t *dp);
int case_overflow(dp_context_t *dp);
int case_check(dp_context_t *dp);
int case_check_weights(dp_context_t *dp);

#endif
