/*
 * mesh.c - coordinates, the cut of a model into stages, and the table of how groups lie in the
 * mesh; see mesh.h.
 */
#include "examples/gpt2/mesh/mesh.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "--tp 2 x --dp 3 = 6": the factors that were given; of a single one without the product. */
static void name_factors(const int *given, int product, char *text, size_t room)
{
    static const char *const flags[GPT2_AXES] = {
        [GPT2_AXIS_TENSOR] = "tp", [GPT2_AXIS_DATA] = "dp", [GPT2_AXIS_PIPELINE] = "pp"};
    int count = 0;

    text[0] = '\0';
    for (int axis = 0; axis < GPT2_AXES; axis++) {
        const size_t used = strlen(text);

        if (given[axis] == 0) continue;
        (void)snprintf(text + used, room - used, "%s--%s %d", count++ == 0 ? "" : " x ",
                       flags[axis], given[axis]);
    }
    if (count < 2) return;
    (void)snprintf(text + strlen(text), room - strlen(text), " = %d", product);
}

int gpt2_mesh_make(const int *given, int world, int rank, gpt2_mesh_t *mesh, gpt2_error_t *error)
{
    /* What is left of the world becomes copies, or stages where their number alone is open. */
    const int open = given[GPT2_AXIS_DATA] == 0 || given[GPT2_AXIS_PIPELINE] > 0
                         ? GPT2_AXIS_DATA
                         : GPT2_AXIS_PIPELINE;
    int64_t product = 1;
    char text[96];

    memset(mesh, 0, sizeof(*mesh));
    for (int axis = 0; axis < GPT2_AXES; axis++) {
        mesh->size[axis] = given[axis] > 0 ? given[axis] : 1;
        product = product * mesh->size[axis] > INT_MAX ? INT_MAX : product * mesh->size[axis];
    }
    name_factors(given, (int)product, text, sizeof(text));
    if (given[open] > 0 && product != world)
        return gpt2_fail(error, "%s ranks, but there are %d", text, world);
    if (world % product != 0)
        return gpt2_fail(error, "%s does not divide the %d ranks", text, world);
    mesh->size[open] *= (int)(world / product);
    if (mesh->size[GPT2_AXIS_PIPELINE] > GPT2_STAGES_MAX) {
        return gpt2_fail(error, "--pp %d: at most %d stages", mesh->size[GPT2_AXIS_PIPELINE],
                         GPT2_STAGES_MAX);
    }
    mesh->is_staged = given[GPT2_AXIS_TENSOR] > 0 || given[GPT2_AXIS_PIPELINE] > 0 ||
                      mesh->size[GPT2_AXIS_DATA] != world;
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
        .parts = mesh->size[GPT2_AXIS_TENSOR],
        .part = mesh->at[GPT2_AXIS_TENSOR],
        .first = mesh->stages.first[stage],
        .last = mesh->stages.first[stage + 1],
        .has_embedding = stage == 0,
        .has_head = stage + 1 == mesh->stages.count,
        .slots = gpt2_schedule_slots(mesh->schedule, mesh->stages.count, stage, mesh->micros)};
}

int gpt2_mesh_has_loss(const gpt2_mesh_t *mesh)
{
    return mesh->at[GPT2_AXIS_PIPELINE] + 1 == mesh->size[GPT2_AXIS_PIPELINE] &&
           mesh->at[GPT2_AXIS_TENSOR] == 0;
}

/* ---- The table ------------------------------------------------------------------------------ */

typedef enum state {
    SAME,    /* replicated: every place has it, and computes all of its gradient */
    PARTIAL, /* every place has it, and computes a part of its gradient */
    SPLIT,   /* every place has a slice of it, and computes that one's gradient */
    PLACED,  /* one place has it: the stage of the block */
    TIED     /* the first and the last place have it, and each computes a part of its gradient */
} state_t;

typedef enum kind { WTE, ROOT, BLOCK_CUT, BLOCK_WHOLE, KINDS } kind_t;

/* The root is the positions, which the first stage uses, and the final norm, which the last one
 * uses. It is small, so both have all of it: a part of the gradient that a stage does not compute
 * is zero. Which dimension of a tensor the tensor axis splits is in shape.c's list. */
static const state_t STATES[KINDS][GPT2_AXES] = {
    [WTE] = {[GPT2_AXIS_TENSOR] = SPLIT, [GPT2_AXIS_DATA] = PARTIAL, [GPT2_AXIS_PIPELINE] = TIED},
    [ROOT] = {[GPT2_AXIS_TENSOR] = SAME, [GPT2_AXIS_DATA] = PARTIAL, [GPT2_AXIS_PIPELINE] = TIED},
    [BLOCK_CUT] =
        {[GPT2_AXIS_TENSOR] = SPLIT, [GPT2_AXIS_DATA] = PARTIAL, [GPT2_AXIS_PIPELINE] = PLACED},
    [BLOCK_WHOLE] =
        {[GPT2_AXIS_TENSOR] = SAME, [GPT2_AXIS_DATA] = PARTIAL, [GPT2_AXIS_PIPELINE] = PLACED},
};

static state_t state_of(const gpt2_tensor_t *tensor, int axis)
{
    const kind_t kind = tensor->group == GPT2_GROUP_WTE    ? WTE
                        : tensor->group == GPT2_GROUP_ROOT ? ROOT
                        : tensor->cut == GPT2_CUT_NONE     ? BLOCK_WHOLE
                                                           : BLOCK_CUT;

    return STATES[kind][axis];
}

/* All tensors of a group lie alike along the pipeline. */
static int is_placed(size_t group)
{
    const kind_t kind = group == GPT2_GROUP_WTE    ? WTE
                        : group == GPT2_GROUP_ROOT ? ROOT
                                                   : BLOCK_WHOLE;

    return STATES[kind][GPT2_AXIS_PIPELINE] == PLACED;
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

int gpt2_mesh_holds(const gpt2_mesh_t *mesh, size_t group)
{
    const int at = mesh->at[GPT2_AXIS_PIPELINE];

    if (is_placed(group)) return at == stage_of(mesh, group);
    return at == 0 || at + 1 == mesh->size[GPT2_AXIS_PIPELINE];
}

int gpt2_mesh_owner(const gpt2_mesh_t *mesh, size_t group)
{
    return is_placed(group) ? stage_of(mesh, group) : 0;
}

int gpt2_mesh_counts(const gpt2_mesh_t *mesh, const gpt2_tensor_t *tensor)
{
    for (int axis = 0; axis < GPT2_AXES; axis++) {
        const state_t state = state_of(tensor, axis);
        const int lowest = state == PLACED ? gpt2_mesh_owner(mesh, tensor->group) : 0;

        if (state != SPLIT && mesh->at[axis] != lowest) return 0;
    }
    return 1;
}

int gpt2_mesh_sums(const gpt2_mesh_t *mesh, const gpt2_tensor_t *tensor, gpt2_axis_t axis)
{
    const state_t state = state_of(tensor, axis);

    return mesh->size[axis] > 1 && (state == PARTIAL || state == TIED);
}

int gpt2_mesh_is_split(const gpt2_tensor_t *tensor, gpt2_axis_t axis)
{
    return state_of(tensor, axis) == SPLIT;
}

double gpt2_mesh_norm(const gpt2_layout_t *layout, const double *squares)
{
    double total = 0.0;

    for (size_t i = 0; i < layout->count; i++)
        total += squares[i];
    return sqrt(total);
}
