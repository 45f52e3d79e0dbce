/*
 * mesh.c - coordinates, the cut of a model into stages, and the table of how groups lie in the
 * mesh; see mesh.h.
 */
#include "examples/gpt2/mesh/mesh.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gpt2_mesh_make(int data, int pipeline, int world, int rank, gpt2_mesh_t *mesh,
                   gpt2_error_t *error)
{
    const int given[2] = {data, pipeline};

    memset(mesh, 0, sizeof(*mesh));
    if (pipeline > GPT2_STAGES_MAX) {
        return gpt2_fail(error, "--pp %d: at most %d stages", pipeline, GPT2_STAGES_MAX);
    }
    mesh->is_staged = pipeline > 0 || (data > 0 && data != world);
    if (data <= 0) data = pipeline > 0 ? world / pipeline : world;
    if (pipeline <= 0) pipeline = data > world ? 1 : world / data;
    if (data * pipeline != world || data == 0) {
        if (given[0] > 0 && given[1] > 0) {
            return gpt2_fail(error, "--dp %d x --pp %d = %d ranks, but there are %d", data,
                             pipeline, data * pipeline, world);
        }
        return gpt2_fail(error, "--%s %d does not divide the %d ranks", given[0] > 0 ? "dp" : "pp",
                         given[0] > 0 ? given[0] : given[1], world);
    }
    for (int axis = 0; axis < GPT2_AXES; axis++)
        mesh->size[axis] = 1;
    mesh->size[GPT2_AXIS_DATA] = data;
    mesh->size[GPT2_AXIS_PIPELINE] = pipeline;
    for (int axis = 0; axis < GPT2_AXES; axis++) {
        mesh->at[axis] = rank % mesh->size[axis];
        rank /= mesh->size[axis];
    }
    mesh->micros = 1;
    return 0;
}

/* ---- Stages --------------------------------------------------------------------------------- */

double gpt2_block_cost(const gpt2_shape_t *shape, int seq)
{
    const double width = (double)shape->width;

    return 12.0 * width * width + (double)seq * width;
}

double gpt2_head_cost(const gpt2_shape_t *shape)
{
    return (double)shape->vocab * (double)shape->width;
}

double gpt2_stage_cost(const gpt2_shape_t *shape, int seq, const gpt2_stages_t *stages, int stage)
{
    const double blocks = (double)(stages->first[stage + 1] - stages->first[stage]);
    const double head = stage + 1 == stages->count ? gpt2_head_cost(shape) : 0.0;

    return blocks * gpt2_block_cost(shape, seq) + head;
}

/* Blocks cost alike, so only the last stage's number of them is to be found; the others share the
 * rest evenly. Later stages take what is left over: earlier ones keep more activations. */
static void cut_by_cost(const gpt2_shape_t *shape, int seq, gpt2_stages_t *stages)
{
    const int others = stages->count - 1;
    const int layers = shape->layers;
    double least = INFINITY;
    int best = layers;

    for (int last = 0; last <= layers - others && others > 0; last++) {
        const int most = (layers - last + others - 1) / others;
        const double rest = most * gpt2_block_cost(shape, seq);
        const double end = last * gpt2_block_cost(shape, seq) + gpt2_head_cost(shape);
        const double dearest = rest > end ? rest : end;

        if (dearest < least) best = last;
        if (dearest < least) least = dearest;
    }
    for (int k = 1; k < stages->count; k++)
        stages->first[k] = (int)((int64_t)(layers - best) * k / others);
    stages->first[stages->count] = layers;
}

static int cut_by_list(const gpt2_shape_t *shape, const char *list, gpt2_stages_t *stages,
                       gpt2_error_t *error)
{
    const char *at = list;
    int count = 0;

    for (; count < GPT2_STAGES_MAX; count++) {
        char *end;
        const long blocks = strtol(at, &end, 10);

        if (end == at || blocks < 0 || blocks > shape->layers || (*end != ',' && *end != '\0')) {
            return gpt2_fail(error, "--stages %s: not a list of numbers of blocks", list);
        }
        stages->first[count + 1] = stages->first[count] + (int)blocks;
        if (*end == '\0') break;
        at = end + 1;
    }
    if (count + 1 != stages->count) {
        return gpt2_fail(error, "--stages %s: %d stages, but the pipeline has %d", list, count + 1,
                         stages->count);
    }
    if (stages->first[stages->count] != shape->layers) {
        return gpt2_fail(error, "--stages %s: %d blocks, but the model has %d", list,
                         stages->first[stages->count], shape->layers);
    }
    return 0;
}

int gpt2_stages_cut(const gpt2_shape_t *shape, int seq, int count, const char *list,
                    gpt2_stages_t *stages, gpt2_error_t *error)
{
    memset(stages, 0, sizeof(*stages));
    stages->count = count;
    if (count - 1 > shape->layers) {
        return gpt2_fail(error, "%d stages: every stage but the last needs one of the %d blocks",
                         count, shape->layers);
    }
    if (list == NULL) {
        cut_by_cost(shape, seq, stages);
    } else if (cut_by_list(shape, list, stages, error) != 0) {
        return -1;
    }
    for (int k = 0; k + 1 < count; k++) {
        if (stages->first[k + 1] > stages->first[k]) continue;
        return gpt2_fail(error, "--stages %s: stage %d has no block; only the last may have none",
                         list, k);
    }
    return 0;
}

gpt2_stage_t gpt2_mesh_stage(const gpt2_mesh_t *mesh)
{
    const int stage = mesh->at[GPT2_AXIS_PIPELINE];

    return (gpt2_stage_t){
        .is_staged = mesh->is_staged,
        .first = mesh->stages.first[stage],
        .last = mesh->stages.first[stage + 1],
        .has_embedding = stage == 0,
        .has_head = stage + 1 == mesh->stages.count,
        .slots = gpt2_schedule_slots(mesh->schedule, mesh->stages.count, stage, mesh->micros)};
}

/* ---- The table ------------------------------------------------------------------------------ */

typedef enum state {
    COPIED, /* every place has it, and computes a part of its gradient */
    PLACED, /* one place has it: the stage of the block */
    TIED    /* the first and the last place have it, and each computes a part of its gradient */
} state_t;

typedef enum kind { WTE, ROOT, BLOCK, KINDS } kind_t;

/* The root is the positions, which the first stage uses, and the final norm, which the last one
 * uses. It is small, so both have all of it: a part of the gradient that a stage does not compute
 * is zero. */
static const state_t STATES[KINDS][GPT2_AXES] = {
    [WTE] = {[GPT2_AXIS_DATA] = COPIED, [GPT2_AXIS_PIPELINE] = TIED},
    [ROOT] = {[GPT2_AXIS_DATA] = COPIED, [GPT2_AXIS_PIPELINE] = TIED},
    [BLOCK] = {[GPT2_AXIS_DATA] = COPIED, [GPT2_AXIS_PIPELINE] = PLACED},
};

static kind_t kind_of(size_t group)
{
    return group == GPT2_GROUP_WTE ? WTE : group == GPT2_GROUP_ROOT ? ROOT : BLOCK;
}

/* The stage of a block. */
static int stage_of(const gpt2_mesh_t *mesh, size_t group)
{
    const int layer = (int)(group - gpt2_layout_group(0));
    int stage = 0;

    while (mesh->stages.first[stage + 1] <= layer)
        stage++;
    return stage;
}

static int place_has(const gpt2_mesh_t *mesh, size_t group, int axis)
{
    const int at = mesh->at[axis];

    switch (STATES[kind_of(group)][axis]) {
    case PLACED:
        return at == stage_of(mesh, group);
    case TIED:
        return at == 0 || at + 1 == mesh->size[axis];
    case COPIED:
        break;
    }
    return 1;
}

int gpt2_mesh_holds(const gpt2_mesh_t *mesh, size_t group)
{
    for (int axis = 0; axis < GPT2_AXES; axis++) {
        if (!place_has(mesh, group, axis)) return 0;
    }
    return 1;
}

int gpt2_mesh_owner(const gpt2_mesh_t *mesh, size_t group)
{
    return STATES[kind_of(group)][GPT2_AXIS_PIPELINE] == PLACED ? stage_of(mesh, group) : 0;
}

int gpt2_mesh_counts(const gpt2_mesh_t *mesh, size_t group)
{
    for (int axis = 0; axis < GPT2_AXES; axis++) {
        const int lowest = axis == GPT2_AXIS_PIPELINE ? gpt2_mesh_owner(mesh, group) : 0;

        if (mesh->at[axis] != lowest) return 0;
    }
    return 1;
}

int gpt2_mesh_sums(const gpt2_mesh_t *mesh, size_t group, gpt2_axis_t axis)
{
    return mesh->size[axis] > 1 && STATES[kind_of(group)][axis] != PLACED;
}

double gpt2_mesh_norm(const gpt2_layout_t *layout, const double *squares)
{
    double total = 0.0;

    for (size_t i = 0; i < layout->count; i++)
        total += squares[i];
    return sqrt(total);
}
