/*
 * other_version.c - a program that was compiled against dp.h of another version.
 *
 * CMake builds it three times, against headers that other_header.awk makes of dp.h: each struct
 * with a `size` has a field fewer (FEWER), as many, or a field more (MORE). The library is the same
 * one. A world of one is enough: sizes are looked at before any other rank is.
 */
#include <dp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANARY 0x5ca1ab1e5ca1ab1eull

static dp_context_t *dp;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "; %s\n", dp == NULL ? "" : dp_error_text(dp));                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static const size_t bad_sizes[] = {0, 4, 12, 4104, (size_t)0x7ffd12345678};
#define BAD_SIZES (sizeof(bad_sizes) / sizeof(bad_sizes[0]))

#ifdef MORE
/* Checks the text of a call on options with an unknown field set. text: NULL: dp_error_text(). */
static void check_refusal(dp_status_t status, const char *text, const char *type)
{
    if (text == NULL) text = dp_error_text(dp);
    CHECK(status == DP_ERR_INVALID, "%s", dp_status_string(status));
    CHECK(strstr(text, type) != NULL && strstr(text, "does not know") != NULL, "%s", text);
}
#endif

static void start(void)
{
    char error[512] = "";
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_status_t status;

    options.error = error;
    options.error_bytes = sizeof(error);
    for (size_t i = 0; i < BAD_SIZES; i++) {
        options.size = bad_sizes[i];
        status = dp_init(&options, &dp);
        CHECK(status == DP_ERR_INVALID && dp == NULL, "size %zu: %s", bad_sizes[i],
              dp_status_string(status));
    }
    options.size = sizeof(options);
#ifdef MORE
    options.added = 1;
    check_refusal(dp_init(&options, &dp), error, "dp_init_options_t");
    options.added = 0;
#endif
#ifndef FEWER
    options.order = DP_ORDER_PROGRAM;
#endif
    status = dp_init(&options, &dp);
    CHECK(status == DP_OK && error[0] == '\0', "%s: %s", dp_status_string(status), error);
#ifdef FEWER /* a missing field has its default */
    CHECK(strcmp(dp_setting(dp, "ORDER"), "negotiated") == 0, "%s", dp_setting(dp, "ORDER"));
#else
    CHECK(strcmp(dp_setting(dp, "ORDER"), "program") == 0, "%s", dp_setting(dp, "ORDER"));
#endif
}

static void operate(void)
{
    struct {
        dp_result_t result;
        uint64_t canary;
    } found = {DP_RESULT_INIT, CANARY};
    float values[3] = {1.0f, 2.0f, 3.0f};
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle;

    for (size_t i = 0; i < BAD_SIZES; i++) {
        options.size = bad_sizes[i];
        CHECK(dp_allreduce(dp_world(dp), "a", values, values, 3, DP_F32, &options, NULL) ==
                  DP_ERR_INVALID,
              "size %zu", bad_sizes[i]);
    }
    options = (dp_options_t)DP_OPTIONS_INIT;
    options.postscale = 2.0;
#ifdef MORE
    options.added = 1;
    check_refusal(dp_allreduce(dp_world(dp), "a", values, values, 3, DP_F32, &options, NULL), NULL,
                  "dp_options_t");
    options.added = 0;
    found.result.added = 42;
#endif
    CHECK(dp_allreduce(dp_world(dp), "a", values, values, 3, DP_F32, &options, &handle) == DP_OK,
          "allreduce");
    for (size_t i = 0; i < BAD_SIZES; i++) { /* and the handle stays */
        found.result.size = bad_sizes[i];
        CHECK(dp_wait(handle, -1.0, &found.result) == DP_ERR_INVALID, "size %zu", bad_sizes[i]);
    }
    found.result.size = sizeof(found.result);
    CHECK(dp_wait(handle, -1.0, &found.result) == DP_OK, "wait");
    CHECK(values[2] == 6.0f && found.result.count == 3 && found.result.sum_squares == 56.0,
          "%g, count %zu, %g", (double)values[2], found.result.count, found.result.sum_squares);
    CHECK(found.canary == CANARY && found.result.size == sizeof(found.result), "it is %zu",
          found.result.size);
#ifdef MORE
    CHECK(found.result.added == 42, "what the library does not know was written");
#endif
}

static void train(void)
{
    struct {
        dp_gradients_result_t result;
        uint64_t canary;
    } found = {DP_GRADIENTS_RESULT_INIT, CANARY};
    struct {
        dp_device_result_t result;
        uint64_t canary;
    } on_stream = {DP_DEVICE_RESULT_INIT, CANARY};
    float weight[1] = {1.0f}, gradient[1] = {8.0f};
    const dp_gradient_t tensor = {"w", weight, gradient, 1, DP_F32};
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients;
    dp_status_t status;

    options.clip_norm = 1.0;
    options.accumulation_steps = 2;
#ifdef MORE
    options.added = (uint64_t)1 << 63;
    check_refusal(dp_gradients_create(dp, &tensor, 1, &options, &gradients), NULL,
                  "dp_gradients_options_t");
    options.added = 0;
    found.result.added = on_stream.result.added = 42;
#endif
    for (size_t i = 0; i < BAD_SIZES; i++) {
        options.size = bad_sizes[i];
        CHECK(dp_gradients_create(dp, &tensor, 1, &options, &gradients) == DP_ERR_INVALID,
              "size %zu", bad_sizes[i]);
    }
    options.size = sizeof(options);
    status = dp_gradients_create(dp, &tensor, 1, &options, &gradients);
    CHECK(status == DP_OK, "%s", dp_status_string(status));
    for (int step = 0; step < 2; step++) {
        gradient[0] = 8.0f;
        for (int i = 0; i < 2; i++)
            CHECK(dp_gradients_ready(gradients, 0, NULL) == DP_OK, "ready");
        for (size_t i = 0; i < BAD_SIZES; i++) {
            found.result.size = on_stream.result.size = bad_sizes[i];
            CHECK((step == 0 ? dp_gradients_sync(gradients, &found.result)
                             : dp_gradients_sync_on(gradients, NULL, &on_stream.result)) ==
                      DP_ERR_INVALID,
                  "size %zu", bad_sizes[i]);
        }
        found.result.size = sizeof(found.result);
        on_stream.result.size = sizeof(on_stream.result);
        status = step == 0 ? dp_gradients_sync(gradients, &found.result)
                           : dp_gradients_sync_on(gradients, NULL, &on_stream.result);
        CHECK(status == DP_OK && gradient[0] == 4.0f, "%s, %g", dp_status_string(status),
              (double)gradient[0]);
    }
    CHECK(found.result.norm == 4.0 && found.result.clip_coef == 0.25, "norm %g, clip_coef %g",
          found.result.norm, found.result.clip_coef);
    CHECK(*on_stream.result.skip == 0 && *on_stream.result.clip_coef == 0.25f, "%u, %g",
          *on_stream.result.skip, (double)*on_stream.result.clip_coef);
    CHECK(found.canary == CANARY && on_stream.canary == CANARY,
          "written beyond the program's struct");
    CHECK(found.result.size == sizeof(found.result) &&
              on_stream.result.size == sizeof(on_stream.result),
          "the sizes are %zu and %zu", found.result.size, on_stream.result.size);
#ifdef MORE
    CHECK(found.result.added == 42 && on_stream.result.added == 42, "written");
#endif
    dp_gradients_destroy(gradients);
}

static void group(void)
{
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;
    const int rank = 0;
    dp_group_t *made = NULL;

    for (size_t i = 0; i < BAD_SIZES; i++) {
        options.size = bad_sizes[i];
        CHECK(dp_group_create(dp, "g", &rank, 1, &options, &made) == DP_ERR_INVALID, "size %zu",
              bad_sizes[i]);
    }
    options.size = sizeof(options);
#ifdef MORE
    options.added = 1;
    check_refusal(dp_group_create(dp, "g", &rank, 1, &options, &made), NULL, "dp_group_options_t");
    options.added = 0;
#endif
    CHECK(dp_group_create(dp, "g", &rank, 1, &options, &made) == DP_OK && made != NULL, "create");
    CHECK(dp_group_destroy(made) == DP_OK, "destroy");
}

static void make_step(dp_gradients_t *gradients)
{
    CHECK(dp_gradients_ready(gradients, 0, NULL) == DP_OK, "ready");
    CHECK(dp_gradients_sync(gradients, NULL) == DP_OK, "sync");
}

/* A struct that the library reads: the number of good steps, which FEWER lacks, becomes 0 there and
 * is neither kept nor read from behind the struct. */
static void set_loss_scale(void)
{
    struct {
        dp_loss_scale_t state;
        uint64_t canary;
    } scale = {DP_LOSS_SCALE_INIT, CANARY};
    float weight[1] = {1.0f}, gradient[1] = {8.0f};
    const dp_gradient_t tensor = {"scaled", weight, gradient, 1, DP_F32};
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_gradients_t *gradients;
    double after = 8.0;

    options.initial_loss_scale = 4.0;
    options.growth_interval = 2;
    CHECK(dp_gradients_create(dp, &tensor, 1, &options, &gradients) == DP_OK, "create");
    make_step(gradients);
    scale.state.scale = 8.0;
    for (size_t i = 0; i < BAD_SIZES; i++) {
        scale.state.size = bad_sizes[i];
        CHECK(dp_gradients_loss_scale_set(gradients, &scale.state) == DP_ERR_INVALID, "size %zu",
              bad_sizes[i]);
    }
    scale.state.size = sizeof(scale.state);
#ifdef MORE
    scale.state.added = 1;
    check_refusal(dp_gradients_loss_scale_set(gradients, &scale.state), NULL, "dp_loss_scale_t");
    scale.state.added = 0;
#endif
#ifndef FEWER
    scale.state.good_steps = 1;
    after = 16.0;
#endif
    CHECK(dp_gradients_loss_scale_set(gradients, &scale.state) == DP_OK, "set");
    make_step(gradients);
    CHECK(dp_gradients_loss_scale_get(gradients, &scale.state) == DP_OK, "get");
    CHECK(scale.state.scale == after, "%g, not %g", scale.state.scale, after);
    CHECK(scale.canary == CANARY, "written beyond the program's struct");
    dp_gradients_destroy(gradients);
}

/* Every struct of dp_shards_t, with something behind it that must stay. */
static void shard(void)
{
    struct {
        dp_shard_row_t row;
        uint64_t canary;
    } row = {DP_SHARD_ROW_INIT, CANARY};
    struct {
        dp_shards_memory_t memory;
        uint64_t canary;
    } memory = {DP_SHARDS_MEMORY_INIT, CANARY};
    struct {
        dp_loss_scale_t state;
        uint64_t canary;
    } scale = {DP_LOSS_SCALE_INIT, CANARY};
    const dp_shard_unit_t group = {.name = "a", .count = 5000};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_t *shards;

#ifdef MORE
    options.added = 1;
    check_refusal(dp_shards_create(dp, &group, 1, &options, &shards), NULL, "dp_shards_options_t");
    options.added = 0;
    row.row.added = memory.memory.added = scale.state.added = 42;
#endif
    for (size_t i = 0; i < BAD_SIZES; i++) {
        options.size = bad_sizes[i];
        CHECK(dp_shards_create(dp, &group, 1, &options, &shards) == DP_ERR_INVALID, "size %zu",
              bad_sizes[i]);
    }
    options.size = sizeof(options);
    CHECK(dp_shards_create(dp, &group, 1, &options, &shards) == DP_OK, "create");
    for (size_t i = 0; i < BAD_SIZES; i++) {
        row.row.size = memory.memory.size = scale.state.size = bad_sizes[i];
        CHECK(dp_shards_row(shards, 0, &row.row) == DP_ERR_INVALID, "size %zu", bad_sizes[i]);
        CHECK(dp_shards_memory_get(shards, &memory.memory) == DP_ERR_INVALID, "size %zu",
              bad_sizes[i]);
        CHECK(dp_shards_loss_scale_get(shards, &scale.state) == DP_ERR_INVALID, "size %zu",
              bad_sizes[i]);
    }
    row.row.size = sizeof(row.row);
    memory.memory.size = sizeof(memory.memory);
    scale.state.size = sizeof(scale.state);
    CHECK(dp_shards_row(shards, 0, &row.row) == DP_OK && row.row.first == 0, "row");
    CHECK(dp_shards_memory_get(shards, &memory.memory) == DP_OK &&
              memory.memory.weights == 8192 * sizeof(float),
          "%zu bytes of weights", memory.memory.weights);
    CHECK(dp_shards_loss_scale_get(shards, &scale.state) == DP_OK && scale.state.scale == 1.0,
          "scale %g", scale.state.scale);
    CHECK(row.canary == CANARY && memory.canary == CANARY && scale.canary == CANARY,
          "written beyond the program's struct");
#ifdef MORE
    CHECK(row.row.added == 42 && memory.memory.added == 42 && scale.state.added == 42, "written");
    check_refusal(dp_shards_loss_scale_set(shards, &scale.state), NULL, "dp_loss_scale_t");
    scale.state.added = 0;
#endif
    CHECK(dp_shards_loss_scale_set(shards, &scale.state) == DP_OK, "set");
    dp_shards_destroy(shards);
}

static void count(void)
{
    struct {
        dp_stats_t stats;
        uint64_t canary;
    } found = {DP_STATS_INIT, CANARY};

#ifdef MORE
    found.stats.added = 42;
#endif
    for (size_t i = 0; i < BAD_SIZES; i++) {
        found.stats.size = bad_sizes[i];
        CHECK(dp_stats_get(dp, &found.stats) == DP_ERR_INVALID, "size %zu", bad_sizes[i]);
    }
    found.stats.size = sizeof(found.stats);
    CHECK(dp_stats_get(dp, &found.stats) == DP_OK, "stats");
    CHECK(found.stats.submitted > 2 && found.stats.completed == found.stats.submitted,
          "%llu and %llu", (unsigned long long)found.stats.submitted,
          (unsigned long long)found.stats.completed);
    CHECK(found.canary == CANARY && found.stats.size == sizeof(found.stats), "size %zu",
          found.stats.size);
#ifdef MORE
    CHECK(found.stats.added == 42, "written");
#endif
}

int main(void)
{
    start();
    operate();
    group();
    train();
    set_loss_scale();
    shard();
    count();
    CHECK(dp_finalize(dp) == DP_OK, "finalize");
    return 0;
}
