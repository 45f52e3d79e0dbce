/*
 * synth.c - plays a job on paper: all ranks of one step at a time, as submissions decide launches
 * for everyone, then writes what each rank would have recorded.
 */
#include "tests/trace/synth.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct player {
    dp_trace_t *trace;
    dp_trace_track_t *thread, *coordinator, *launch;
    dp_trace_track_t *device; /* NULL: its work is not marked there */
    uint64_t *submits;        /* [buckets * tensors] of the present step */
    uint64_t now;             /* of its thread */
    uint64_t data_free;       /* when its data plane is idle */
    uint64_t request;         /* last one */
    uint64_t in_flight;
} player_t;

static const char *const layer_names[] = {"h.0.mlp",  "h.0.attn", "h.1.mlp",
                                          "h.1.attn", "wte",      "wpe"};

static uint32_t tensor_name(const player_t *player, int bucket, int tensor)
{
    char text[64];

    snprintf(text, sizeof(text), "%s.%d.%s", layer_names[bucket % 6], bucket,
             tensor % 2 == 0 ? "weight" : "bias");
    return dp_trace_name(player->trace, text);
}

static void record(dp_trace_track_t *track, dp_trace_record_t record, uint64_t start, uint64_t end)
{
    record.start_ns = start;
    record.duration_ns = end - start;
    dp_trace_record(track, record);
}

static void span(const player_t *player, const char *name, uint64_t start, uint64_t end)
{
    record(
        player->device,
        (dp_trace_record_t){.kind = DP_TRACE_COMPUTE, .name = dp_trace_name(player->trace, name)},
        start, end);
    record(player->thread,
           (dp_trace_record_t){.kind = DP_TRACE_SPAN, .name = dp_trace_name(player->trace, name)},
           start, end);
}

/* Forward and backward of one rank, up to its last submission. */
static void play_compute(const dp_synth_t *synth, player_t *player, int is_late)
{
    uint64_t forward = synth->forward_ns + (is_late ? synth->late_ns : 0);
    uint64_t start = player->now, backward;

    span(player, "forward", start, start + forward);
    player->now = backward = start + forward;
    for (int b = 0; b < synth->buckets; b++) {
        uint64_t layer = player->now, end = layer + synth->layer_ns;

        for (int k = 0; k < synth->spans; k++) {
            uint64_t part = synth->layer_ns / (uint64_t)synth->spans;

            span(player,
                 k % 3 == 0   ? "matmul"
                 : k % 3 == 1 ? "gelu"
                              : "layernorm",
                 layer + part * (uint64_t)k, layer + part * (uint64_t)(k + 1) - part / 8);
        }
        player->now = end;
        for (int t = 0; t < synth->tensors; t++) {
            player->request++;
            record(player->thread,
                   (dp_trace_record_t){.kind = DP_TRACE_SUBMIT,
                                       .name = tensor_name(player, b, t),
                                       .id = player->request,
                                       .aux = synth->on_device ? DP_TRACE_ON_STREAM : 0,
                                       .bytes = synth->bucket_bytes / (uint64_t)synth->tensors},
                   player->now, player->now + 1000);
            player->submits[b * synth->tensors + t] = player->now;
            player->now += 1000;
        }
    }
    span(player, "backward", backward, player->now);
}

/* When a rank's engine comes to a bucket that it launches at `launch`. */
static uint64_t arrival(const dp_synth_t *synth, const player_t *player, uint64_t launch)
{
    return dp_max(launch, player->data_free) + synth->pack_ns;
}

/* One bucket on one rank, launched at `launch`, to which `last` comes last, at `met`. Returns when
 * it is complete. */
static uint64_t play_bucket(const dp_synth_t *synth, player_t *player, int bucket, uint64_t number,
                            uint64_t first_request, uint64_t launch, uint64_t met, int last)
{
    uint32_t name = tensor_name(player, bucket, 0);
    uint64_t wire = arrival(synth, player, launch), pack = wire - synth->pack_ns;
    uint64_t unpack = met + synth->wire_ns, done = unpack + synth->pack_ns;
    dp_trace_record_t base = {.name = name,
                              .bucket = number,
                              .bytes = synth->bucket_bytes,
                              .aux = (uint32_t)synth->tensors & DP_TRACE_AUX_MAX};

    for (int t = 0; t < synth->tensors; t++) {
        record(player->coordinator,
               (dp_trace_record_t){.kind = DP_TRACE_AGREE,
                                   .bucket = number,
                                   .name = tensor_name(player, bucket, t),
                                   .id = first_request + (uint64_t)t,
                                   .bytes = synth->bucket_bytes / (uint64_t)synth->tensors},
               player->submits[bucket * synth->tensors + t], launch);
    }
    base.kind = DP_TRACE_LAUNCH;
    record(player->coordinator, base, launch, launch + 2000);
    /* as the pipeline records them: dp_collective_t + 1 */
    base.id = bucket >= synth->buckets - synth->gathers ? 3 : 1;
    base.kind = DP_TRACE_PACK;
    record(player->launch, base, pack, wire);
    base.kind = DP_TRACE_WIRE;
    record(player->launch, base, wire, unpack);
    if (met > wire) {
        record(player->launch,
               (dp_trace_record_t){
                   .kind = DP_TRACE_WAIT_RANK, .bucket = number, .aux = (uint32_t)last & 0xffffff},
               wire, met);
    }
    base.kind = DP_TRACE_UNPACK;
    record(player->launch, base, unpack, done);
    dp_trace_record(player->launch,
                    (dp_trace_record_t){.kind = DP_TRACE_COUNTER,
                                        .start_ns = pack,
                                        .name = dp_trace_name(player->trace, "bytes in flight"),
                                        .id = synth->bucket_bytes});
    dp_trace_record(player->launch,
                    (dp_trace_record_t){.kind = DP_TRACE_COUNTER,
                                        .start_ns = done,
                                        .name = dp_trace_name(player->trace, "bytes in flight")});
    player->data_free = done;
    return done;
}

static void play_step(const dp_synth_t *synth, player_t *players, uint64_t *done, int step)
{
    uint64_t tensors = (uint64_t)synth->buckets * (uint64_t)synth->tensors;
    const int late = synth->take_turns ? step % synth->ranks : synth->late_rank;
    uint64_t *begins = malloc((size_t)synth->ranks * sizeof(*begins));
    uint64_t *launches = malloc((size_t)synth->ranks * sizeof(*launches));

    if (begins == NULL || launches == NULL) abort();
    for (int r = 0; r < synth->ranks; r++) {
        begins[r] = players[r].now;
        play_compute(synth, &players[r], r == late);
    }
    for (int b = 0; b < synth->buckets; b++) {
        uint64_t launch = 0, met = 0;
        int last = 0;

        for (int r = 0; r < synth->ranks; r++) {
            launches[r] = players[r].submits[b * synth->tensors + synth->tensors - 1] + 1000 +
                          synth->launch_ns;
            launch = dp_max(launch, launches[r]);
        }
        for (int r = 0; r < synth->ranks; r++) {
            if (!synth->unasked) launches[r] = launch;
            if (arrival(synth, &players[r], launches[r]) <= met) continue;
            met = arrival(synth, &players[r], launches[r]);
            last = r;
        }
        for (int r = 0; r < synth->ranks; r++) {
            done[r * synth->buckets + b] = play_bucket(
                synth, &players[r], b, (uint64_t)step * (uint64_t)synth->buckets + (uint64_t)b + 1,
                players[r].request - tensors + (uint64_t)(b * synth->tensors) + 1, launches[r], met,
                last);
        }
    }
    for (int r = 0; r < synth->ranks; r++) {
        player_t *player = &players[r];

        for (int b = synth->wait_for_all ? synth->buckets - 1 : 0; b < synth->buckets; b++) {
            uint64_t end = done[r * synth->buckets + b];

            if (end <= player->now) continue;
            record(player->thread,
                   (dp_trace_record_t){.kind = DP_TRACE_WAIT,
                                       .name = synth->wait_for_all ? 0 : tensor_name(player, b, 0),
                                       .id = synth->wait_for_all
                                                 ? 0
                                                 : player->request - tensors +
                                                       (uint64_t)(b * synth->tensors) + 1},
                   player->now, end);
            player->now = end;
        }
        span(player, "optimizer", player->now, player->now + synth->optimizer_ns);
        player->now += synth->optimizer_ns;
        record(
            player->thread,
            (dp_trace_record_t){.kind = DP_TRACE_STEP, .id = (uint64_t)(synth->first_step + step)},
            begins[r], player->now);
    }
    free(begins);
    free(launches);
}

static dp_status_t open_player(const dp_synth_t *synth, const char *run_dir, int rank,
                               player_t *player, dp_error_t *error)
{
    char host[32];
    dp_status_t status;

    snprintf(host, sizeof(host), "node%02d", rank / 2);
    status = dp_trace_create(run_dir, rank, synth->ranks, host, synth->trace_bytes, &player->trace,
                             error);
    if (status != DP_OK) return status;
    player->thread = dp_trace_track(player->trace, "main", DP_TRACE_TRACK_THREAD);
    player->coordinator = dp_trace_track(player->trace, "coordinator", DP_TRACE_TRACK_COORDINATOR);
    player->launch = dp_trace_track(player->trace, "launch", DP_TRACE_TRACK_LAUNCH);
    if (synth->on_device && rank % 2 == 1)
        player->device = dp_trace_track(player->trace, "device", DP_TRACE_TRACK_STREAM);
    player->submits =
        calloc((size_t)(synth->buckets * synth->tensors) + 1, sizeof(*player->submits));
    player->now = 1000000000;
    return player->submits == NULL ? DP_ERR_NO_MEMORY : DP_OK;
}

dp_status_t dp_synth_write(const dp_synth_t *synth, const char *run_dir, dp_error_t *error)
{
    player_t *players = calloc((size_t)synth->ranks, sizeof(*players));
    uint64_t *done = calloc((size_t)(synth->ranks * synth->buckets) + 1, sizeof(*done));
    dp_status_t status = players != NULL && done != NULL ? DP_OK : DP_ERR_NO_MEMORY;

    for (int r = 0; r < synth->ranks && status == DP_OK; r++)
        status = open_player(synth, run_dir, r, &players[r], error);
    for (int s = 0; s < synth->steps && status == DP_OK; s++)
        play_step(synth, players, done, s);
    for (int r = 0; r < synth->ranks && players != NULL; r++) {
        dp_trace_destroy(players[r].trace, 1);
        free(players[r].submits);
    }
    free(players);
    free(done);
    return status;
}
