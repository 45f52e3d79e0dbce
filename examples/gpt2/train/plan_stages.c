/*
 * plan_stages.c - what each stage of a pipeline will take, and the schedule as a drawing; see
 * plan.h.
 */
#include "examples/gpt2/train/plan.h"

#include <string.h>

#include "examples/gpt2/model/activations.h"

/* The mesh of these options as a rank of the first copy sees it that is in stage `stage`: the last
 * one along the tensor axis, whose slices are not smaller than those of others. */
static int mesh_of(const gpt2_options_t *options, const gpt2_shape_t *shape, int ranks, int stage,
                   gpt2_mesh_t *mesh, gpt2_error_t *error)
{
    if (gpt2_options_mesh(options, shape, ranks, 0, mesh, error) != 0) return -1;
    mesh->at[GPT2_AXIS_PIPELINE] = stage;
    mesh->at[GPT2_AXIS_TENSOR] = mesh->size[GPT2_AXIS_TENSOR] - 1;
    return 0;
}

/* Bytes that a rank sends for the sums of a pass and its backward: two in each direction for a
 * block, one for the lookups, one for the head, and three numbers a row for the loss. */
static double sum_bytes(const gpt2_stage_t *stage, double stream, int width)
{
    const double sums = 4.0 * (stage->last - stage->first) + stage->has_embedding +
                        stage->has_head * (1.0 + 3.0 / width);

    return sums * stream * 2.0 * (stage->parts - 1) / stage->parts;
}

/* Bytes of a micro-batch between two stages. */
static double stream_bytes(const gpt2_options_t *options, const gpt2_layout_t *layout,
                           const gpt2_mesh_t *mesh)
{
    return (double)gpt2_plan_micro_batch(options, mesh->size[GPT2_AXIS_DATA]) *
           (double)options->seq * layout->shape.width * sizeof(float);
}

static int plan_stage(const gpt2_options_t *options, const gpt2_layout_t *layout,
                      const gpt2_mesh_t *mesh, const gpt2_plan_place_t *place, gpt2_plan_t *plan,
                      gpt2_error_t *error)
{
    const int stage = mesh->at[GPT2_AXIS_PIPELINE];
    const int copies = mesh->size[GPT2_AXIS_DATA];
    const int neighbours = (stage > 0) + (stage + 1 < mesh->stages.count);
    const double stream = stream_bytes(options, layout, mesh);
    gpt2_model_options_t model = {.shape = layout->shape,
                                  .stage = gpt2_mesh_stage(mesh),
                                  .batch = gpt2_plan_micro_batch(options, copies),
                                  .length = (int)options->seq,
                                  .threads = (int)options->threads,
                                  .training = 1};
    const char *wire = options->wire;
    const double width = strcmp(wire, "fp16") == 0 || strcmp(wire, "bf16") == 0 ? 0.5 : 1.0;
    gpt2_layout_t *slice;
    double summed = 0.0;

    memset(plan, 0, sizeof(*plan));
    if (gpt2_layout_create(&layout->shape, &slice, error) != 0) return -1;
    if (gpt2_layout_slice(slice, model.stage.parts, model.stage.part, error) != 0) {
        gpt2_layout_destroy(slice);
        return -1;
    }
    for (size_t i = 0; i < slice->count; i++) {
        const double bytes = (double)slice->tensors[i].count * sizeof(float);

        if (!gpt2_mesh_holds(mesh, slice->tensors[i].group)) continue;
        if (gpt2_mesh_sums(mesh, &slice->tensors[i], GPT2_AXIS_PIPELINE)) summed += bytes;
        summed += 2.0 * bytes * (copies - 1) / copies;
    }
    for (size_t i = 0; i < slice->group_count; i++) {
        if (gpt2_mesh_holds(mesh, i)) plan->weights += slice->groups[i].count * sizeof(float);
    }
    plan->gradients = plan->weights;
    plan->moments = 2 * plan->weights;
    if (mesh->stages.count == 1) plan->gradients += slice->groups[GPT2_GROUP_WTE].count * 4;
    gpt2_layout_destroy(slice);
    if (gpt2_activations_create(&model, NULL, &plan->activations, error) != 0) return -1;
    if (stage > 0) plan->activations += (size_t)((model.stage.slots + 1) * stream);
    if (neighbours > 0)
        plan->activations += (size_t)(2 * stream * (stage + 1 < mesh->stages.count ? 2 : 1));
    plan->library = place->library;
    plan->total =
        plan->weights + plan->gradients + plan->moments + plan->activations + plan->library;
    plan->sent_gradients = summed * width;
    plan->sent_streams = neighbours * mesh->micros * stream;
    plan->sent_sums = mesh->micros * sum_bytes(&model.stage, stream, layout->shape.width);
    return 0;
}

int gpt2_plan_dearest_stage(const gpt2_options_t *options, const gpt2_layout_t *layout,
                            const gpt2_plan_place_t *place, gpt2_plan_t *plan, gpt2_error_t *error)
{
    gpt2_plan_t other;
    gpt2_mesh_t mesh;

    memset(plan, 0, sizeof(*plan));
    for (int stage = 0, count = 1; stage < count; stage++) {
        if (mesh_of(options, &layout->shape, place->ranks, stage, &mesh, error) != 0) return -1;
        if (plan_stage(options, layout, &mesh, place, &other, error) != 0) return -1;
        if (other.total > plan->total) *plan = other;
        count = mesh.stages.count;
    }
    return 0;
}

static void print_stage(const gpt2_options_t *options, const gpt2_layout_t *layout,
                        const gpt2_mesh_t *mesh, const gpt2_plan_t *plan, FILE *out)
{
    const gpt2_stages_t *stages = &mesh->stages;
    const int stage = mesh->at[GPT2_AXIS_PIPELINE];
    const double mib = 1048576.0;
    double all = 0.0;

    for (int k = 0; k < stages->count; k++)
        all += gpt2_stage_cost(&layout->shape, (int)options->seq, stages, k);
    (void)fprintf(
        out,
        "stage   %d: %d block%s%s%s, %.1f %% of the work; %.1f MiB: weights %.1f, "
        "gradients %.1f, moments %.1f, activations %.1f\n",
        stage, stages->first[stage + 1] - stages->first[stage],
        stages->first[stage + 1] - stages->first[stage] == 1 ? "" : "s",
        stage == 0 ? " and the embedding" : "", stage + 1 == stages->count ? " and the head" : "",
        100.0 * gpt2_stage_cost(&layout->shape, (int)options->seq, stages, stage) / all,
        (double)plan->total / mib, (double)plan->weights / mib, (double)plan->gradients / mib,
        (double)plan->moments / mib, (double)plan->activations / mib);
}

int gpt2_plan_print_stages(const gpt2_options_t *options, const gpt2_layout_t *layout,
                           const gpt2_plan_place_t *place, FILE *out, gpt2_error_t *error)
{
    gpt2_mesh_t mesh;
    gpt2_plan_t plan;

    if (mesh_of(options, &layout->shape, place->ranks, 0, &mesh, error) != 0) return -1;
    if (mesh.stages.count == 1) return 0;
    for (int stage = 0; stage < mesh.stages.count; stage++) {
        mesh.at[GPT2_AXIS_PIPELINE] = stage;
        if (plan_stage(options, layout, &mesh, place, &plan, error) != 0) return -1;
        print_stage(options, layout, &mesh, &plan, out);
    }
    (void)fprintf(
        out,
        "bubble  %.1f %% of a step where stages cost alike, by (K - 1) / (M + K - 1) with "
        "K = %d stages and M = %d micro-batches\n",
        100.0 * gpt2_schedule_bubble(mesh.stages.count, mesh.micros), mesh.stages.count,
        mesh.micros);
    if (gpt2_schedule_draw(mesh.schedule, mesh.stages.count, mesh.micros, out) == 0) return 0;
    return gpt2_fail(error, "out of memory for a schedule");
}
