/*
 * way_dp.c - compare's own side: dp_allreduce, submitted and awaited, under dprun.
 *
 *     dprun -np 2 way_dp memory=arena|ordinary|registered [wire=none|fp16] table=FILE ...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"
#include "tests/bench/peers/slices.h"

enum { PARTS_MAX = 256, PAGE = 4096 };

typedef struct state {
    dp_context_t *dp;
    const char *memory;
    dp_options_t options;
    char names[PARTS_MAX][32];
    dp_handle_t *handles[PARTS_MAX];
} state_t;

static int failed(const state_t *state, dp_status_t status)
{
    if (status == DP_OK) return 0;
    fprintf(stderr, "way_dp: %s: %s\n", dp_status_string(status), dp_error_text(state->dp));
    return -1;
}

static void *memory(void *user, size_t bytes)
{
    state_t *state = user;
    const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    void *tensor = NULL;

    if (strcmp(state->memory, "arena") == 0) {
        return failed(state, dp_alloc(state->dp, bytes, &tensor)) == 0 ? tensor : NULL;
    }
    tensor = aligned_alloc(PAGE, whole);
    if (tensor == NULL || strcmp(state->memory, "registered") != 0) return tensor;
    return failed(state, dp_register(state->dp, tensor, whole)) == 0 ? tensor : NULL;
}

/* A size keeps its name, so that only its first iteration tells the others about it. */
static int reduce(void *user, float *tensor, size_t count, const slices_parts_t *parts)
{
    state_t *state = user;

    for (size_t i = 0; i < parts->count; i++) {
        snprintf(state->names[i], sizeof(state->names[i]), "tensor.%zu.%zu", count, i);
        if (failed(state, dp_allreduce(dp_world(state->dp), state->names[i], tensor, tensor,
                                       parts->counts[i], DP_F32, &state->options,
                                       &state->handles[i])) != 0) {
            return -1;
        }
        tensor += parts->counts[i];
    }
    for (size_t i = 0; i < parts->count; i++) {
        if (failed(state, dp_wait(state->handles[i], -1.0, NULL)) != 0) return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static state_t state;
    const slices_way_t way = {"libdp", &state, memory, reduce};
    int code;

    state.memory = slices_argument(argc, argv, "memory", "arena");
    state.options = (dp_options_t)DP_OPTIONS_INIT;
    state.options.reduce = DP_SUM;
    if (strcmp(slices_argument(argc, argv, "wire", "none"), "fp16") == 0) {
        state.options.wire = DP_WIRE_FP16;
    }
    if (dp_init(NULL, &state.dp) != DP_OK) return 1;
    code = slices_run(&way, dp_rank(state.dp), dp_size(state.dp), argc, argv);
    if (code != 0) dp_abort(state.dp, "way_dp failed");
    return dp_finalize(state.dp) == DP_OK ? code : 1;
}
