/*
 * victim_shards.c - a loop of dp_shards_t that loses a rank, and tells what its survivors learned.
 *
 *     dprun -np N --inject kill:1@30 victim_shards STEPS STAGE
 *
 * A rank dies as a step begins, so the others wait for its rows in a gather, or for its gradients.
 * A survivor prints the status, the text and the call that brought it, and exits with 3.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"

enum { GROUPS = 3, WIDTH = 60000 };

static const char *where = "";

static dp_status_t step_of(dp_shards_t *shards)
{
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    const void *weights;
    float *gradients;
    dp_status_t status = DP_OK;

    where = "a gather";
    for (size_t g = 0; status == DP_OK && g < GROUPS; g++) {
        if (g + 1 < GROUPS) status = dp_shards_gather(shards, g + 1, NULL);
        if (status == DP_OK) status = dp_shards_wait(shards, g, NULL, &weights);
        if (status == DP_OK) status = dp_shards_release(shards, g);
    }
    if (status == DP_OK) where = "a sync";
    for (size_t g = GROUPS; status == DP_OK && g-- > 0;) {
        status = dp_shards_gradients(shards, g, NULL, &gradients);
        for (size_t i = 0; status == DP_OK && i < WIDTH; i++)
            gradients[i] = 1.0f;
        if (status == DP_OK) status = dp_shards_ready(shards, g, NULL);
    }
    if (status == DP_OK) status = dp_shards_sync(shards, &result);
    return status;
}

int main(int argc, char **argv)
{
    const dp_shard_unit_t groups[GROUPS] = {{.name = "h.0", .count = WIDTH},
                                            {.name = "h.1", .count = WIDTH},
                                            {.name = "h.2", .count = WIDTH}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_t *shards = NULL;
    dp_context_t *dp;
    dp_status_t status;

    if (argc != 3 || dp_init(NULL, &dp) != DP_OK) return 2;
    options.stage = (dp_shard_stage_t)strtol(argv[2], NULL, 10);
    status = dp_shards_create(dp, groups, GROUPS, &options, &shards);
    for (long step = 0; status == DP_OK && step < strtol(argv[1], NULL, 10); step++) {
        dp_step_begin(dp, (uint64_t)step);
        status = step_of(shards);
        dp_step_end(dp);
    }
    if (status != DP_OK) {
        fprintf(stderr, "learned in %s: %s: %s\n", where, dp_status_string(status),
                dp_error_text(dp));
    }
    dp_shards_destroy(shards);
    return dp_finalize(dp) == DP_OK ? 0 : 3;
}
