/*
 * fuzz_hello.c - any bytes as what three ranks say in a world's first exchange, and in the second
 * one, of which of them each has reached.
 *
 * An input is three times (u16 size, bytes), then a byte of each rank. A world that agrees has
 * every rank on one node, a plan in range and a number of cores; otherwise there is a text without
 * control characters.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "coordinator/api/world/hello.h"

#define RANKS 3

static void check_text(const dp_error_t *error)
{
    if (error->text[0] == '\0') abort();
    for (const char *at = error->text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20) abort();
}

static void check_topology(const dp_context_t *context)
{
    const dp_topology_t *topology = &context->topology;

    if (!context->has_topology || topology->node_count < 1 || topology->node_count > RANKS) abort();
    for (int rank = 0; rank < RANKS; rank++) {
        const int node = topology->node[rank];

        if (node < 0 || node >= topology->node_count) abort();
        if (topology->local_rank[rank] >= topology->node_size[node]) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    dp_context_t *context = calloc(1, sizeof(*context));
    dp_error_t error = {DP_OK, ""};
    void *values[RANKS];
    size_t sizes[RANKS];
    uint8_t reached[RANKS];
    dp_hello_t *hello = NULL;

    if (context == NULL) return 0;
    dp_config_defaults(&context->config);
    context->config.log_level = DP_LOG_ERROR;
    dp_log_init(&context->log, DP_LOG_ERROR, 1);
    context->rank = 1;
    context->size = RANKS;
    if (dp_hello_create(context, &hello, &error) != DP_OK) abort();
    for (int rank = 0; rank < RANKS; rank++) {
        const size_t wanted = (size_t)fuzz_number(&input, 2);
        const uint8_t *at = fuzz_take(&input, wanted, &sizes[rank]);

        values[rank] = malloc(sizes[rank] + 1); /* with a NUL behind it, as an exchange gives it */
        if (values[rank] == NULL) abort();
        if (sizes[rank] > 0) memcpy(values[rank], at, sizes[rank]);
        ((uint8_t *)values[rank])[sizes[rank]] = '\0';
    }
    if (dp_hello_read(hello, values, sizes, &error) != DP_OK) {
        check_text(&error);
    } else {
        check_topology(context);
        if (context->config.fusion_bytes > (UINT64_C(1) << 40)) abort();
        for (int rank = 0; rank < RANKS; rank++) {
            reached[rank] = (uint8_t)fuzz_number(&input, 1);
            free(values[rank]);
            values[rank] = malloc(2);
            if (values[rank] == NULL) abort();
            memset(values[rank], reached[rank] % 2, 2);
            sizes[rank] = reached[rank] / 2 % 3;
        }
        if (dp_hello_settle(hello, dp_hello_must_try(hello) ? values : NULL, sizes, &error) !=
            DP_OK)
            check_text(&error);
        check_topology(context);
        if (context->cores_each < 0) abort();
    }
    for (int rank = 0; rank < RANKS; rank++)
        free(values[rank]);
    dp_hello_destroy(hello);
    if (context->has_topology) dp_topology_fini(&context->topology);
    free(context);
    return 0;
}

/* Three ranks of this machine that agree; the same cut short, and of another node. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    dp_context_t *context = calloc(1, sizeof(*context));
    dp_error_t error = {DP_OK, ""};
    dp_hello_t *hello = NULL;
    uint8_t said[DP_HELLO_ROOM];
    size_t used = 0;
    size_t bytes;

    if (context == NULL || which > 2 || room < 3 * DP_HELLO_ROOM) {
        free(context);
        return 0;
    }
    dp_config_defaults(&context->config);
    context->size = RANKS;
    context->config.pretend_nodes = which == 2 ? 3 : 0;
    if (dp_hello_create(context, &hello, &error) != DP_OK) abort();
    for (int rank = 0; rank < RANKS; rank++) {
        context->rank = rank;
        bytes = dp_hello_write(hello, said);
        if (bytes == 0) abort();
        if (which == 1 && rank == 2) bytes /= 2;
        data[used++] = (uint8_t)bytes;
        data[used++] = (uint8_t)(bytes >> 8);
        memcpy(data + used, said, bytes);
        used += bytes;
    }
    dp_hello_destroy(hello);
    free(context);
    memset(data + used, 3, RANKS);
    return used + RANKS;
}
