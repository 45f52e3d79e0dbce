/*
 * fuzz_negotiator.c - any bytes as frames from a parent and from a child.
 *
 * The first byte picks the sender and what the rank has done before. Whatever comes, the machine
 * either goes on or ends the world with a text that names a rank; all outputs are taken.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/messages.h"
#include "coordinator/negotiator.h"

#define RANKS 3 /* a chain; the one in the middle is under test */

static void take_all(dp_negotiator_t *negotiator)
{
    dp_output_t out;

    while (dp_negotiator_output(negotiator, &out)) {
        if (out.kind == DP_OUTPUT_FATAL && out.text[0] == '\0') abort();
        if (out.kind == DP_OUTPUT_SEND && out.to == 1) abort();
    }
}

static void submit(dp_negotiator_t *negotiator, const char *name)
{
    dp_signature_part_t part = {768, DP_F32};
    dp_signature_t signature = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                .reduce = DP_SUM,
                                .wire = DP_WIRE_NONE,
                                .root = -1,
                                .peer = -1,
                                .is_grouped = 0,
                                .prescale = 1.0,
                                .postscale = 1.0,
                                .part_count = 1,
                                .parts = &part};
    dp_submission_t submission = {.name = name,
                                  .signature = &signature,
                                  .in_place = 1,
                                  .last_absmax = 1.0f,
                                  .is_urgent = 0,
                                  .request = negotiator};

    (void)dp_negotiator_submit(negotiator, &submission, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const hosts[RANKS] = {"a", "b", "c"};
    dp_negotiator_options_t options = {1, RANKS, NULL, NULL, 0, 1 << 20, 1000000000, 0};
    dp_negotiator_t *negotiator = NULL;
    dp_topology_t topology;
    dp_tree_node_t node;

    if (bytes == 0) return 0;
    if (dp_topology_init(&topology, hosts, RANKS) != DP_OK) return 0;
    if (dp_tree_node_init(&node, &topology, 1, 1) == DP_OK) {
        options.topology = &topology;
        options.node = &node;
        if (dp_negotiator_create(&options, &negotiator) == DP_OK) {
            submit(negotiator, "wte");
            if (data[0] & 2) take_all(negotiator);
            if (data[0] & 4) dp_negotiator_finalize(negotiator, 2);
            dp_negotiator_message(negotiator, data[0] & 1 ? 2 : 0, data + 1, bytes - 1, 3);
            take_all(negotiator);
            dp_negotiator_tick(negotiator, 2000000000);
            take_all(negotiator);
            submit(negotiator, "wpe");
            take_all(negotiator);
        }
        dp_negotiator_destroy(negotiator);
        dp_tree_node_fini(&node);
    }
    dp_topology_fini(&topology);
    return 0;
}

/* One frame of one item each, as a well-behaved neighbour would send it. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const dp_item_kind_t kinds[] = {
        DP_ITEM_READY, DP_ITEM_MISMATCH, DP_ITEM_URGENT,  DP_ITEM_PARTIAL, DP_ITEM_KEEP,
        DP_ITEM_LEFT,  DP_ITEM_FIN,      DP_ITEM_MISSING, DP_ITEM_LAUNCH,  DP_ITEM_FAILURE,
        DP_ITEM_KEEP,  DP_ITEM_CLOSED,   DP_ITEM_WHO,     DP_ITEM_WARN,    DP_ITEM_FATAL};
    static dp_signature_part_t parts[2] = {{768, DP_F32}, {1024, DP_F32}};
    static dp_signature_t one = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                 .reduce = DP_SUM,
                                 .wire = DP_WIRE_NONE,
                                 .root = -1,
                                 .peer = -1,
                                 .is_grouped = 0,
                                 .prescale = 1.0,
                                 .postscale = 1.0,
                                 .part_count = 1,
                                 .parts = parts};
    static dp_signature_t other = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                   .reduce = DP_SUM,
                                   .wire = DP_WIRE_NONE,
                                   .root = -1,
                                   .peer = -1,
                                   .is_grouped = 0,
                                   .prescale = 1.0,
                                   .postscale = 1.0,
                                   .part_count = 1,
                                   .parts = parts + 1};
    dp_frame_header_t header = {0, 0, 0};
    dp_item_t item;
    dp_writer_t writer;

    if (which >= DP_ARRAY_LEN(kinds)) return 0;
    memset(&item, 0, sizeof(item));
    item.kind = kinds[which];
    item.id = item.kind == DP_ITEM_FAILURE ? 0 : DP_ID_NONE;
    item.name = "wte";
    item.text = "because";
    item.signature = &one;
    item.other = &other;
    item.rank = 2;
    item.status = DP_ERR_MISMATCH;
    item.flags = item.kind == DP_ITEM_READY ? DP_FLAG_SIGNATURE : DP_FLAG_NAME;
    item.sequence = item.count = item.round = 1;
    item.missing.count = item.missing.named = 1;
    if (item.kind == DP_ITEM_LEFT || item.kind == DP_ITEM_CLOSED) item.count = 0;
    dp_writer_init(&writer, data, room);
    dp_write_u8(&writer, (uint8_t)(2 | (which < 8)));
    if (item.kind == DP_ITEM_FATAL) header.position = DP_POSITION_NONE;
    dp_frame_write_header(&writer, &header);
    dp_item_write(&writer, &item);
    if (item.kind == DP_ITEM_LAUNCH) dp_item_write_entry(&writer, 0, DP_FLAG_NAME, 1.0f, "wte");
    return writer.failed ? 0 : writer.bytes;
}
