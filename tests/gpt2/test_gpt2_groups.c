/*
 * test_gpt2_groups.c - groups of tensors divided among ranks: the map of their parts, initial
 * weights and updates of parts, and passes over groups that are supplied one by one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"
#include "examples/gpt2/model/replica.h"
#include "tests/unit/cases.h"

#define BATCH 2
#define LENGTH 8
#define CALLS_MAX 256

static const gpt2_shape_t SHAPE = {
    .vocab = 250, .vocab_padded = 256, .context = 16, .layers = 3, .heads = 2, .width = 48};
static gpt2_error_t error;

/* ---- The map -------------------------------------------------------------------------------- */

/* Every element of every tensor is in exactly one part, at its place. */
static void parts_cover_every_tensor_once(void **state)
{
    gpt2_layout_t *layout;

    (void)state;
    assert_int_equal(gpt2_layout_create(&SHAPE, &layout, &error), 0);
    for (int ranks = 1; ranks <= 9; ranks++) {
        uint8_t *seen = calloc(layout->arena_count, 1);

        assert_non_null(seen);
        for (size_t group = 0; group < layout->group_count; group++) {
            const size_t count = layout->groups[group].count;
            const size_t row = gpt2_row_size(count, ranks);

            assert_int_equal(row % GPT2_TENSOR_ALIGN, 0);
            assert_true(row * (size_t)ranks >= count);
            assert_true(row < count / (size_t)ranks + GPT2_TENSOR_ALIGN + 1);
            for (int rank = 0; rank < ranks; rank++) {
                gpt2_piece_t pieces[GPT2_PIECES_MAX];
                const size_t first = row * (size_t)rank;
                const size_t found = gpt2_group_pieces(layout, group, first, row, pieces);

                for (size_t i = 0; i < found; i++) {
                    const gpt2_tensor_t *tensor = &layout->tensors[pieces[i].tensor];
                    const size_t at = tensor->offset + pieces[i].first;

                    assert_int_equal(tensor->group, group);
                    assert_true(pieces[i].first + pieces[i].count <= tensor->count);
                    assert_int_equal(first + pieces[i].at, tensor->place + pieces[i].first);
                    for (size_t j = 0; j < pieces[i].count; j++)
                        seen[at + j]++;
                }
            }
        }
        for (size_t i = 0; i < layout->count; i++) {
            for (size_t j = 0; j < layout->tensors[i].count; j++)
                assert_int_equal(seen[layout->tensors[i].offset + j], 1);
        }
        free(seen);
    }
    gpt2_layout_destroy(layout);
}

static void groups_follow_each_other_in_the_arena(void **state)
{
    gpt2_layout_t *layout;
    size_t sum = 0;

    (void)state;
    assert_int_equal(gpt2_layout_create(&SHAPE, &layout, &error), 0);
    for (size_t i = 0; i < layout->group_count; i++) {
        sum += layout->groups[i].count;
        assert_int_equal(layout->groups[i].count % GPT2_TENSOR_ALIGN, 0);
    }
    assert_int_equal(sum, layout->arena_count);
    assert_string_equal(layout->groups[GPT2_GROUP_WTE].name, "wte");
    assert_string_equal(layout->groups[GPT2_GROUP_ROOT].name, "root");
    assert_string_equal(layout->groups[gpt2_layout_group(2)].name, "h.2");
    assert_int_equal(gpt2_group_last(layout, GPT2_GROUP_ROOT), gpt2_layout_wpe(layout));
    assert_int_equal(gpt2_group_last(layout, gpt2_layout_group(0)),
                     gpt2_layout_block(layout, 0) + GPT2_LN1_B);
    gpt2_layout_destroy(layout);
}

/* ---- A supply ------------------------------------------------------------------------------- */

/* Hands groups out of separate memory, which is poisoned where nobody holds it, and notes calls. */
typedef struct store {
    const gpt2_layout_t *layout; /* the replica's, while that is there */
    size_t groups;
    float **weights;   /* [groups] */
    float **gradients; /* [groups] */
    int *held;         /* [groups] */
    char calls[CALLS_MAX][24];
    size_t called;
    size_t fail_at; /* this call fails; 0: none */
    gpt2_error_t error;
    gpt2_supply_t supply;
} store_t;

static int note(store_t *self, const char *what, size_t group, gpt2_phase_t phase)
{
    assert_true(self->called < CALLS_MAX);
    (void)snprintf(self->calls[self->called++], sizeof(self->calls[0]), "%s %.8s %d", what,
                   self->layout->groups[group].name, (int)phase);
    if (self->called != self->fail_at) return 0;
    return gpt2_fail(&self->error, "call %zu fails", self->called);
}

static int before_use(void *user, size_t group, gpt2_phase_t phase, float **weights,
                      float **gradients)
{
    store_t *self = user;

    self->held[group] = 1;
    *weights = self->weights[group];
    if (phase == GPT2_BACKWARD) *gradients = self->gradients[group];
    return note(self, "before", group, phase);
}

static int after_use(void *user, size_t group, gpt2_phase_t phase)
{
    store_t *self = user;

    assert_true(self->held[group]);
    self->held[group] = 0;
    return note(self, "after", group, phase);
}

static int after_update(void *user, size_t group)
{
    (void)user;
    (void)group;
    return 0;
}

static void store_make(store_t *self, const gpt2_layout_t *layout)
{
    memset(self, 0, sizeof(*self));
    self->layout = layout;
    self->groups = layout->group_count;
    self->weights = calloc(layout->group_count, sizeof(*self->weights));
    self->gradients = calloc(layout->group_count, sizeof(*self->gradients));
    self->held = calloc(layout->group_count, sizeof(*self->held));
    for (size_t i = 0; i < layout->group_count; i++) {
        const size_t bytes = layout->groups[i].count * sizeof(float);

        self->weights[i] = aligned_alloc(256, bytes);
        self->gradients[i] = aligned_alloc(256, bytes);
        memset(self->weights[i], 0, bytes);
        memset(self->gradients[i], 0xff, bytes); /* as another group may have left it */
    }
    self->supply = (gpt2_supply_t){self, before_use, after_use, after_update, NULL, &self->error};
}

static void store_free(store_t *self)
{
    for (size_t i = 0; i < self->groups; i++) {
        free(self->weights[i]);
        free(self->gradients[i]);
    }
    free(self->weights);
    free(self->gradients);
    free(self->held);
}

/* level 2: its weights and gradients are numbers of the precision. */
static gpt2_replica_t *make_replica_of(int is_supplied, int threads, const char *precision,
                                       int level)
{
    const gpt2_replica_options_t options = {
        .model = {.shape = SHAPE,
                  .batch = BATCH,
                  .length = LENGTH,
                  .threads = threads,
                  .training = 1,
                  .is_supplied = is_supplied},
        .optimizer = {.learning_rate = 1e-2,
                      .final_rate = 0.1,
                      .steps = 10,
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .epsilon = 1e-8,
                      .decay = 0.1},
        .precision = precision,
        .level = level,
    };
    gpt2_replica_t *replica;

    if (gpt2_replica_cpu_create(&options, &replica, &error) != 0) fail_msg("%s", error.text);
    return replica;
}

static gpt2_replica_t *make_replica(int is_supplied, int threads)
{
    return make_replica_of(is_supplied, threads, NULL, 0);
}

static int32_t inputs[BATCH * LENGTH];
static int32_t targets[BATCH * LENGTH];

static gpt2_batch_t make_batch(uint64_t seed, int count)
{
    for (size_t i = 0; i < BATCH * LENGTH; i++) {
        inputs[i] = (int32_t)(gpt2_random_bits(seed, 1, i) % 250);
        targets[i] = (int32_t)(gpt2_random_bits(seed, 2, i) % 250);
    }
    return (gpt2_batch_t){inputs, targets, count, LENGTH};
}

/* Two passes, a norm and an update. */
static double train_step(gpt2_replica_t *replica, uint64_t seed)
{
    const gpt2_sync_t sync = {.norm = 1.0, .clip = 0.5};
    gpt2_outcome_t outcome;

    for (int pass = 0; pass < 2; pass++) {
        const gpt2_batch_t batch = make_batch(2 * seed + (uint64_t)pass, 1 + pass);

        if (replica->ops->train(replica, &batch, 0.05f, pass > 0, NULL, &error) != 0) {
            fail_msg("%s", error.text);
        }
    }
    assert_int_equal(replica->ops->update(replica, 1e-2, &sync, &error), 0);
    assert_int_equal(replica->ops->settle(replica, &outcome, &error), 0);
    return outcome.loss_sum;
}

/* Supplied groups give the bits of arenas: weights drawn, losses, gradients, updates. */
static void supplied_groups_give_equal_bits(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        gpt2_replica_t *plain = make_replica(0, threads);
        gpt2_replica_t *supplied = make_replica(1, threads);
        const gpt2_layout_t *layout = plain->layout;
        gpt2_part_t *parts = calloc(layout->group_count, sizeof(*parts));
        const gpt2_batch_t batch = make_batch(77, BATCH);
        store_t store;
        double losses[2];

        store_make(&store, layout);
        for (size_t i = 0; i < layout->group_count; i++) {
            parts[i] = (gpt2_part_t){.weights = store.weights[i],
                                     .gradients = store.gradients[i],
                                     .count = layout->groups[i].count};
        }
        assert_int_equal(supplied->ops->supply(supplied, &store.supply, parts, &error), 0);
        assert_int_equal(plain->ops->draw(plain, 3, &error), 0);
        assert_int_equal(supplied->ops->draw(supplied, 3, &error), 0);
        for (uint64_t step = 0; step < 3; step++) {
            store.called = 0;
            assert_true(train_step(plain, step) == train_step(supplied, step));
        }
        for (size_t i = 0; i < layout->group_count; i++) {
            const size_t bytes = layout->groups[i].count * sizeof(float);

            assert_memory_equal(store.weights[i], plain->weights + layout->groups[i].offset, bytes);
            assert_memory_equal(store.gradients[i], plain->gradients + layout->groups[i].offset,
                                bytes);
            assert_false(store.held[i]);
        }
        assert_int_equal(plain->ops->evaluate(plain, &batch, &losses[0], &error), 0);
        assert_int_equal(supplied->ops->evaluate(supplied, &batch, &losses[1], &error), 0);
        assert_true(losses[0] == losses[1]);
        for (size_t i = 0; i < layout->group_count; i++)
            assert_false(store.held[i]);
        plain->ops->destroy(plain);
        supplied->ops->destroy(supplied);
        store_free(&store);
        free(parts);
    }
}

/* Weights of 16 bits: passes see what the last update rounded, and masters have the bits of those
 * of a replica with arenas. */
static void supplied_halves_give_equal_bits(void **state)
{
    static const char *const precisions[] = {"bf16", "fp16"};

    (void)state;
    for (int k = 0; k < 2; k++) {
        gpt2_replica_t *plain = make_replica_of(0, 2, precisions[k], 2);
        gpt2_replica_t *supplied = make_replica_of(1, 2, precisions[k], 2);
        const gpt2_layout_t *layout = plain->layout;
        gpt2_part_t *parts = calloc(layout->group_count, sizeof(*parts));
        const gpt2_batch_t batch = make_batch(77, BATCH);
        store_t store;
        double losses[2];

        store_make(&store, layout);
        for (size_t i = 0; i < layout->group_count; i++) {
            parts[i] = (gpt2_part_t){.halves = (uint16_t *)(void *)store.weights[i],
                                     .gradients = store.gradients[i],
                                     .count = layout->groups[i].count};
        }
        assert_int_equal(supplied->ops->supply(supplied, &store.supply, parts, &error), 0);
        assert_int_equal(plain->ops->draw(plain, 3, &error), 0);
        assert_int_equal(supplied->ops->draw(supplied, 3, &error), 0);
        assert_int_equal(plain->ops->refresh(plain, &error), 0);
        assert_int_equal(supplied->ops->refresh(supplied, &error), 0);
        for (uint64_t step = 0; step < 3; step++) {
            store.called = 0;
            assert_true(train_step(plain, step) == train_step(supplied, step));
        }
        store.called = 0;
        assert_int_equal(plain->ops->evaluate(plain, &batch, &losses[0], &error), 0);
        assert_int_equal(supplied->ops->evaluate(supplied, &batch, &losses[1], &error), 0);
        assert_true(losses[0] == losses[1]);
        for (size_t i = 0; i < layout->group_count; i++) {
            const size_t bytes = layout->groups[i].count * sizeof(float);

            assert_memory_equal(supplied->parts[i].weights, plain->parts[i].weights, bytes);
            assert_memory_equal(supplied->parts[i].v, plain->parts[i].v, bytes);
            assert_false(store.held[i]);
        }
        plain->ops->destroy(plain);
        supplied->ops->destroy(supplied);
        store_free(&store);
        free(parts);
    }
}

/* Any division into rows updates as one whole does. */
static void divided_updates_give_equal_bits(void **state)
{
    gpt2_replica_t *plain = make_replica(0, 1);
    const gpt2_layout_t *layout = plain->layout;
    const gpt2_sync_t sync = {.clip = 0.7};

    (void)state;
    assert_int_equal(plain->ops->draw(plain, 5, &error), 0);
    for (size_t i = 0; i < layout->arena_count; i++)
        plain->gradients[i] = (float)gpt2_random_normal(1, 1, i);
    for (int ranks = 1; ranks <= 4; ranks++) {
        gpt2_replica_t *whole = make_replica(0, 1);
        uint64_t sum = 0;
        uint64_t hash;

        assert_int_equal(whole->ops->draw(whole, 5, &error), 0);
        memcpy(whole->gradients, plain->gradients, layout->arena_count * sizeof(float));
        assert_int_equal(whole->ops->update(whole, 1e-2, &sync, &error), 0);
        for (int rank = 0; rank < ranks; rank++) {
            gpt2_replica_t *divided = make_replica(1, 2);
            gpt2_part_t *parts = calloc(layout->group_count, sizeof(*parts));
            store_t store;

            store_make(&store, layout);
            for (size_t i = 0; i < layout->group_count; i++) {
                const size_t count = layout->groups[i].count;
                const size_t row = gpt2_row_size(count, ranks);
                const size_t first = row * (size_t)rank < count ? row * (size_t)rank : count;

                memcpy(store.gradients[i], plain->gradients + layout->groups[i].offset,
                       count * sizeof(float));
                parts[i] = (gpt2_part_t){.weights = store.weights[i] + first,
                                         .gradients = store.gradients[i] + first,
                                         .first = first,
                                         .count = count - first < row ? count - first : row};
            }
            assert_int_equal(divided->ops->supply(divided, &store.supply, parts, &error), 0);
            assert_int_equal(divided->ops->draw(divided, 5, &error), 0);
            assert_int_equal(divided->ops->update(divided, 1e-2, &sync, &error), 0);
            for (size_t i = 0; i < layout->group_count; i++) {
                const gpt2_part_t *part = &divided->parts[i];
                const gpt2_part_t *all = &whole->parts[i];
                const size_t bytes = part->count * sizeof(float);

                sum += gpt2_part_hash(layout, i, part);
                assert_memory_equal(part->weights, all->weights + part->first, bytes);
                assert_memory_equal(part->m, all->m + part->first, bytes);
                assert_memory_equal(part->v, all->v + part->first, bytes);
            }
            divided->ops->destroy(divided);
            store_free(&store);
            free(parts);
        }
        assert_int_equal(whole->ops->checksum(whole, &hash, &error), 0);
        assert_true(hash == sum);
        whole->weights[layout->tensors[7].offset] += 1.0f;
        assert_int_equal(whole->ops->checksum(whole, &hash, &error), 0);
        assert_true(hash != sum);
        whole->ops->destroy(whole);
    }
    plain->ops->destroy(plain);
}

/* The calls of a pass do not depend on how many sequences it has, none among them. */
static void empty_passes_make_the_same_calls(void **state)
{
    gpt2_replica_t *replica = make_replica(1, 2);
    const gpt2_layout_t *layout = replica->layout;
    gpt2_part_t *parts = calloc(layout->group_count, sizeof(*parts));
    store_t store;
    store_t full;
    double loss;

    (void)state;
    store_make(&store, layout);
    for (size_t i = 0; i < layout->group_count; i++)
        parts[i] = (gpt2_part_t){.weights = store.weights[i], .count = layout->groups[i].count};
    assert_int_equal(replica->ops->supply(replica, &store.supply, parts, &error), 0);
    assert_int_equal(replica->ops->draw(replica, 3, &error), 0);
    for (int training = 0; training < 2; training++) {
        for (int count = 2; count >= 0; count -= 2) {
            const gpt2_batch_t batch = make_batch(1, count);

            store.called = 0;
            assert_int_equal(training ? replica->ops->train(replica, &batch, 1.0f, 0, NULL, &error)
                                      : replica->ops->evaluate(replica, &batch, &loss, &error),
                             0);
            if (count > 0) full = store;
            assert_int_equal(store.called, full.called);
            assert_memory_equal(store.calls, full.calls, full.called * sizeof(full.calls[0]));
        }
    }
    assert_true(full.called > 2 * layout->group_count);
    for (size_t i = 0; i < layout->group_count; i++) { /* and contributes zeros */
        for (size_t j = 0; j < layout->groups[i].count; j++)
            assert_true(store.gradients[i][j] == 0.0f);
    }
    replica->ops->destroy(replica);
    store_free(&store);
    free(parts);
}

/* Whichever call fails, the pass ends with its reason, on all threads. */
static void a_supply_that_fails_stops_the_pass(void **state)
{
    size_t calls = 0;

    (void)state;
    for (size_t at = 1; calls == 0 || at <= calls; at++) {
        gpt2_replica_t *replica = make_replica(1, 3);
        const gpt2_layout_t *layout = replica->layout;
        gpt2_part_t *parts = calloc(layout->group_count, sizeof(*parts));
        const gpt2_batch_t batch = make_batch(1, BATCH);
        store_t store;
        double loss;

        store_make(&store, layout);
        for (size_t i = 0; i < layout->group_count; i++)
            parts[i] = (gpt2_part_t){.weights = store.weights[i], .count = layout->groups[i].count};
        assert_int_equal(replica->ops->supply(replica, &store.supply, parts, &error), 0);
        assert_int_equal(replica->ops->draw(replica, 3, &error), 0);
        store.fail_at = calls == 0 ? 0 : at;
        assert_int_equal(replica->ops->train(replica, &batch, 1.0f, 0, NULL, &error),
                         calls == 0 ? 0 : -1);
        if (calls == 0) {
            calls = store.called;
            at = 0;
        } else {
            assert_non_null(strstr(error.text, "fails"));
            assert_int_equal(store.called, at); /* it asked for nothing behind that */
            assert_int_equal(replica->ops->evaluate(replica, &batch, &loss, &error), -1);
        }
        replica->ops->destroy(replica);
        store_free(&store);
        free(parts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_cover_every_tensor_once),
        cmocka_unit_test(groups_follow_each_other_in_the_arena),
        cmocka_unit_test(supplied_groups_give_equal_bits),
        cmocka_unit_test(supplied_halves_give_equal_bits),
        cmocka_unit_test(divided_updates_give_equal_bits),
        cmocka_unit_test(empty_passes_make_the_same_calls),
        cmocka_unit_test(a_supply_that_fails_stops_the_pass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
