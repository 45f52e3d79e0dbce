/*
 * test_gpt2_mesh.c - the mesh and the schedules of a pipeline: places, cuts, who counts what, and a
 * proof by trying that every schedule of a small pipeline ends, within its memory.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/mesh/mesh.h"
#include "tests/unit/cases.h"

static gpt2_error_t error;

static int make(int tensor, int data, int pipeline, int world, int rank, gpt2_mesh_t *mesh)
{
    const int given[GPT2_AXES] = {
        [GPT2_AXIS_TENSOR] = tensor, [GPT2_AXIS_DATA] = data, [GPT2_AXIS_PIPELINE] = pipeline};

    return gpt2_mesh_make(given, world, rank, mesh, &error);
}

/* ---- Places --------------------------------------------------------------------------------- */

static void tensor_is_the_innermost_axis_and_pipeline_the_outermost(void **state)
{
    gpt2_mesh_t mesh;

    (void)state;
    for (int rank = 0; rank < 12; rank++) {
        assert_int_equal(make(2, 0, 2, 12, rank, &mesh), 0);
        assert_int_equal(mesh.size[GPT2_AXIS_DATA], 3);
        assert_int_equal(mesh.at[GPT2_AXIS_TENSOR], rank % 2);
        assert_int_equal(mesh.at[GPT2_AXIS_DATA], rank / 2 % 3);
        assert_int_equal(mesh.at[GPT2_AXIS_PIPELINE], rank / 6);
        assert_true(mesh.is_staged);
        assert_int_equal(gpt2_mesh_has_loss(&mesh), rank >= 6 && rank % 2 == 0);
    }
    assert_int_equal(make(0, 2, 0, 6, 5, &mesh), 0);
    assert_int_equal(mesh.size[GPT2_AXIS_PIPELINE], 3);
    assert_int_equal(make(3, 2, 0, 6, 5, &mesh), 0);
    assert_int_equal(mesh.size[GPT2_AXIS_PIPELINE], 1);
    assert_true(mesh.is_staged);
    assert_int_equal(make(0, 0, 0, 6, 5, &mesh), 0);
    assert_int_equal(mesh.at[GPT2_AXIS_DATA], 5);
    assert_false(mesh.is_staged);
    assert_int_equal(make(0, 6, 0, 6, 5, &mesh), 0);
    assert_false(mesh.is_staged);
    assert_int_equal(make(0, 0, 1, 6, 5, &mesh), 0);
    assert_true(mesh.is_staged); /* one stage, by the same code as several */
    assert_int_equal(make(1, 0, 0, 6, 5, &mesh), 0);
    assert_true(mesh.is_staged);
}

static void a_product_that_is_not_the_world_is_refused(void **state)
{
    static const struct {
        int tensor;
        int data;
        int pipeline;
        int world;
        const char *text;
    } cases[] = {{0, 2, 3, 8, "--dp 2 x --pp 3 = 6 ranks, but there are 8"},
                 {2, 2, 3, 8, "--tp 2 x --dp 2 x --pp 3 = 12 ranks, but there are 8"},
                 {0, 3, 0, 8, "--dp 3 does not divide the 8 ranks"},
                 {0, 0, 5, 8, "--pp 5 does not divide the 8 ranks"},
                 {3, 0, 0, 8, "--tp 3 does not divide the 8 ranks"},
                 {2, 0, 3, 8, "--tp 2 x --pp 3 = 6 does not divide the 8 ranks"},
                 {2, 3, 0, 8, "--tp 2 x --dp 3 = 6 does not divide the 8 ranks"},
                 {0, 9, 0, 8, "--dp 9 does not divide the 8 ranks"},
                 {0, 0, 16, 8, "--pp 16 does not divide the 8 ranks"},
                 {0, 1, 0, 300, "--pp 300: at most 256 stages"}};
    gpt2_mesh_t mesh;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(
            make(cases[i].tensor, cases[i].data, cases[i].pipeline, cases[i].world, 0, &mesh), -1);
        assert_string_equal(error.text, cases[i].text);
    }
}

/* ---- Stages --------------------------------------------------------------------------------- */

/* Best cuts, worked out by hand from 12 C^2 + T C for a block and V C for the head. */
static void stages_are_cut_by_cost(void **state)
{
    static const struct {
        const char *preset;
        int seq;
        int count;
        int blocks[4];
    } cases[] = {{"124M", 64, 2, {9, 3}},           {"124M", 1024, 2, {8, 4}},
                 {"124M", 1024, 4, {4, 4, 4}},      {"350M", 64, 2, {14, 10}},
                 {"350M", 64, 4, {7, 7, 7, 3}},     {"774M", 64, 2, {20, 16}},
                 {"774M", 64, 4, {10, 10, 10, 6}},  {"1558M", 64, 2, {25, 23}},
                 {"1558M", 64, 4, {13, 13, 13, 9}}, {"124M", 64, 1, {12}}};
    gpt2_stages_t stages;
    gpt2_shape_t shape;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(gpt2_shape_preset(cases[i].preset, &shape, &error), 0);
        assert_int_equal(
            gpt2_stages_cut(&shape, cases[i].seq, cases[i].count, NULL, &stages, &error), 0);
        for (int k = 0; k < cases[i].count; k++)
            assert_int_equal(stages.first[k + 1] - stages.first[k], cases[i].blocks[k]);
        assert_int_equal(stages.first[cases[i].count], shape.layers);
    }
}

static void a_list_of_stages_is_checked(void **state)
{
    static const struct {
        const char *list;
        const char *text; /* NULL: accepted */
    } cases[] = {{"9,3", NULL},
                 {"12,0", NULL},
                 {"9,4", "13 blocks, but the model has 12"},
                 {"0,12", "stage 0 has no block"},
                 {"12", "1 stages, but the pipeline has 2"},
                 {"4,4,4", "3 stages, but the pipeline has 2"},
                 {"9;3", "not a list"},
                 {"-1,13", "not a list"},
                 {"9,", "not a list"}};
    gpt2_stages_t stages;
    gpt2_shape_t shape;

    (void)state;
    assert_int_equal(gpt2_shape_preset("124M", &shape, &error), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int code = gpt2_stages_cut(&shape, 64, 2, cases[i].list, &stages, &error);

        assert_int_equal(code, cases[i].text == NULL ? 0 : -1);
        if (cases[i].text != NULL) assert_non_null(strstr(error.text, cases[i].text));
    }
    assert_int_equal(gpt2_stages_cut(&shape, 64, 14, NULL, &stages, &error), -1);
    assert_int_equal(gpt2_stages_cut(&shape, 64, 13, NULL, &stages, &error),
                     0); /* the head alone */
}

/* ---- Who has and who counts ----------------------------------------------------------------- */

static const gpt2_shape_t SHAPE = {
    .vocab = 250, .vocab_padded = 256, .context = 16, .layers = 5, .heads = 3, .width = 48};

/* Adds to squares [tensors] what a rank counts where every gradient is 1, and checks that it has
 * what its passes need. */
static void count_ones(const gpt2_mesh_t *mesh, double *squares)
{
    const gpt2_stage_t stage = gpt2_mesh_stage(mesh);
    gpt2_layout_t *layout;

    assert_int_equal(gpt2_layout_create(&SHAPE, &layout, &error), 0);
    assert_int_equal(gpt2_layout_slice(layout, stage.parts, stage.part, &error), 0);
    for (int layer = 0; layer < SHAPE.layers; layer++) {
        assert_int_equal(gpt2_mesh_holds(mesh, gpt2_layout_group(layer)),
                         layer >= stage.first && layer < stage.last);
    }
    assert_int_equal(gpt2_mesh_holds(mesh, GPT2_GROUP_WTE), stage.has_embedding || stage.has_head);
    for (size_t i = 0; i < layout->count; i++) {
        if (!gpt2_mesh_counts(mesh, &layout->tensors[i])) continue;
        assert_true(gpt2_mesh_holds(mesh, layout->tensors[i].group));
        squares[i] += (double)layout->tensors[i].count;
    }
    gpt2_layout_destroy(layout);
}

/* With every gradient 1, the norm is the square root of the number of parameters. */
static void every_parameter_counts_once_in_every_layout(void **state)
{
    gpt2_layout_t *layout;
    double *squares;

    (void)state;
    assert_int_equal(gpt2_layout_create(&SHAPE, &layout, &error), 0);
    squares = calloc(layout->count, sizeof(*squares));
    assert_non_null(squares);
    for (int layouts = 0; layouts < 3 * 3 * 6; layouts++) {
        const int tensor = layouts % 3 + 1;
        const int data = layouts / 3 % 3 + 1;
        const int stages = layouts / 9 + 1;
        const int world = tensor * data * stages;

        memset(squares, 0, layout->count * sizeof(*squares));
        for (int rank = 0; rank < world; rank++) {
            gpt2_mesh_t mesh;

            assert_int_equal(make(tensor, data, stages, world, rank, &mesh), 0);
            assert_int_equal(gpt2_stages_cut(&SHAPE, 8, stages, NULL, &mesh.stages, &error), 0);
            count_ones(&mesh, squares);
        }
        assert_true(gpt2_mesh_norm(layout, squares) == sqrt((double)layout->parameter_count));
    }
    free(squares);
    gpt2_layout_destroy(layout);
}

/* Gradients are summed over copies, and those of the tied embedding over both ends; places of the
 * tensor axis have equal ones, or slices of their own. */
static void gradients_are_summed_where_places_have_parts_of_them(void **state)
{
    gpt2_layout_t *layout;
    gpt2_mesh_t mesh;

    (void)state;
    assert_int_equal(gpt2_layout_create(&SHAPE, &layout, &error), 0);
    assert_int_equal(make(2, 2, 2, 8, 0, &mesh), 0);
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];

        assert_true(gpt2_mesh_sums(&mesh, tensor, GPT2_AXIS_DATA));
        assert_false(gpt2_mesh_sums(&mesh, tensor, GPT2_AXIS_TENSOR));
        assert_int_equal(gpt2_mesh_sums(&mesh, tensor, GPT2_AXIS_PIPELINE), tensor->layer < 0);
        assert_int_equal(gpt2_mesh_is_split(tensor, GPT2_AXIS_TENSOR),
                         tensor->cut != GPT2_CUT_NONE);
    }
    gpt2_layout_destroy(layout);
}

/* ---- Schedules ------------------------------------------------------------------------------ */

#define STAGES 8
#define MICROS 32
#define BORDERS 2 /* as in pipeline.c */

/* One stage as pipeline.c runs it: the counts of what it has posted and done. */
typedef struct runner {
    gpt2_action_t actions[2 * MICROS];
    int next;      /* action */
    int inputs;    /* receives posted */
    int gradients; /* likewise */
    int done[2];   /* forwards, backwards: as many were sent */
} runner_t;

/* A send is over when its receive is posted. */
static int output_is_gone(const runner_t *self, int micro)
{
    return micro < 0 || self[1].inputs > micro;
}

static int gradient_is_gone(const runner_t *self, int micro, int stage)
{
    return micro < 0 || stage == 0 || self[-1].gradients > micro;
}

/* Posts what there are buffers for, and runs the next action if its needs are met; 1: something was
 * done. */
static int advance(runner_t *self, gpt2_schedule_kind_t kind, int stages, int stage, int micros)
{
    const int slots = gpt2_schedule_slots(kind, stages, stage, micros);
    const int is_last = stage + 1 == stages;
    const gpt2_action_t *action = &self->actions[self->next];
    const int micro = action->micro;
    int moved = 0;

    if (self->next == 2 * micros) return 0;
    for (; stage > 0 && self->inputs < micros && self->inputs < self->done[1] + slots + 1;
         moved = 1)
        self->inputs++;
    for (; !is_last && self->gradients < micros && self->gradients < self->done[1] + BORDERS &&
           gradient_is_gone(self, self->gradients - BORDERS, stage);
         moved = 1)
        self->gradients++;
    if (action->is_backward) {
        if (!is_last && (self->gradients <= micro || self[1].done[1] <= micro)) return moved;
        if (!gradient_is_gone(self, micro - BORDERS, stage)) return moved;
        assert_true(self->done[0] > micro);
    } else {
        if (stage > 0 && (self->inputs <= micro || self[-1].done[0] <= micro)) return moved;
        if (!is_last && !output_is_gone(self, micro - BORDERS)) return moved;
    }
    assert_int_equal(micro, self->done[action->is_backward]); /* in the order of one rank */
    self->done[action->is_backward]++;
    assert_true(self->done[0] - self->done[1] <= slots);
    self->next++;
    return 1;
}

static void every_schedule_ends_within_its_memory(void **state)
{
    static runner_t runners[STAGES];

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        for (int stages = 1; stages <= STAGES; stages++) {
            for (int micros = 1; micros <= MICROS; micros++) {
                int moved = 1;

                memset(runners, 0, sizeof(runners));
                for (int k = 0; k < stages; k++)
                    gpt2_schedule_make((gpt2_schedule_kind_t)kind, stages, k, micros,
                                       runners[k].actions);
                while (moved) {
                    moved = 0;
                    for (int k = 0; k < stages; k++)
                        moved |=
                            advance(&runners[k], (gpt2_schedule_kind_t)kind, stages, k, micros);
                }
                for (int k = 0; k < stages; k++)
                    assert_int_equal(runners[k].next, 2 * micros);
            }
        }
    }
}

static void a_schedule_is_drawn_with_its_bubble(void **state)
{
    static const char expected[] = "stage 0   f0 f1       b0 b0 f2 b1 b1    b2 b2 \n"
                                   "stage 1      f0 b0 b0 f1 b1 b1 f2 b2 b2 \n";
    char text[256] = "";
    FILE *out = fmemopen(text, sizeof(text), "w");

    (void)state;
    assert_non_null(out);
    assert_int_equal(gpt2_schedule_draw(GPT2_SCHEDULE_1F1B, 2, 3, out), 0);
    (void)fclose(out);
    assert_string_equal(text, expected);
    /* Ten of twelve columns: both stages wait 3 of 12, (K - 1) / (M + K - 1) = 1 / 4. */
    assert_true(gpt2_schedule_bubble(2, 3) == 0.25);
    assert_true(gpt2_schedule_bubble(1, 3) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_is_the_innermost_axis_and_pipeline_the_outermost),
        cmocka_unit_test(a_product_that_is_not_the_world_is_refused),
        cmocka_unit_test(stages_are_cut_by_cost),
        cmocka_unit_test(a_list_of_stages_is_checked),
        cmocka_unit_test(every_parameter_counts_once_in_every_layout),
        cmocka_unit_test(gradients_are_summed_where_places_have_parts_of_them),
        cmocka_unit_test(every_schedule_ends_within_its_memory),
        cmocka_unit_test(a_schedule_is_drawn_with_its_bubble),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
