/*
 * hello.c - the smallest program: every rank gives 1 + its rank, every rank gets the sum.
 *
 *     dprun -np 2 build/hello
 */
#include <stdio.h>

#include "dp.h"

int main(void)
{
    char error[512];
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_context_t *dp;
    dp_handle_t *handle;
    dp_status_t status;
    float value;

    options.error = error;
    options.error_bytes = sizeof(error);
    if (dp_init(&options, &dp) != DP_OK) {
        fprintf(stderr, "hello: %s\n", error);
        return 1;
    }
    value = 1.0f + (float)dp_rank(dp);
    status = dp_allreduce(dp_world(dp), "value", &value, &value, 1, DP_F32, NULL, &handle);
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    if (status != DP_OK) {
        fprintf(stderr, "hello: %s: %s\n", dp_status_string(status), dp_error_text(dp));
    } else {
        printf("rank %d of %d: the sum is %g\n", dp_rank(dp), dp_size(dp), (double)value);
    }
    if (dp_finalize(dp) != DP_OK) return 1;
    return status == DP_OK ? 0 : 1;
}
