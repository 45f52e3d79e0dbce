/*
 * fuzz_negotiator.c - any bytes as frames from a parent and from a child.
 *
 * The first byte picks the sender and what has happened before: whether outputs were taken, a group
 * made, joined, left. Whatever comes, the machine either goes on or ends the world with a text that
 * names a rank; all outputs are taken.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/negotiator/messages.h"
#include "coordinator/negotiator/negotiator.h"

#define RANKS 3 /* a chain; the one in the middle is under test */
#define GROUP 1 /* number of the group of it and its child */

/* Bits of the first byte. */
#define FROM_CHILD 1u
#define TAKEN 2u
#define LEAVES 4u
#define HAS_GROUP 8u
#define JOINS 16u
#define PENDS 32u /* something is pending in the group, or the group itself */
#define CHILD 64u /* the child has said the same as this rank */

static const int32_t members[] = {1, 2};

static void take_all(dp_negotiator_t *negotiator)
{
    dp_output_t out;

    while (dp_negotiator_output(negotiator, &out)) {
        if (out.kind == DP_OUTPUT_FATAL && out.text[0] == '\0') abort();
        if (out.kind == DP_OUTPUT_SEND && out.to == 1) abort();
    }
}

static const dp_signature_t sum = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                   .wire = DP_WIRE_NONE,
                                   .root = -1,
                                   .peer = -1,
                                   .prescale = 1.0,
                                   .postscale = 1.0,
                                   .part_count = 1,
                                   .parts = &(const dp_signature_part_t){768, DP_F32}};
static const dp_signature_t create = {.collective = DP_COLLECTIVE_GROUP_CREATE,
                                      .wire = DP_WIRE_NONE,
                                      .root = -1,
                                      .peer = -1,
                                      .member_count = 2,
                                      .members = members,
                                      .group_name = "tp"};
static const dp_signature_t join = {.collective = DP_COLLECTIVE_JOIN, .root = -1, .peer = -1};

static void submit(dp_negotiator_t *negotiator, uint32_t group, const char *name,
                   const dp_signature_t *signature)
{
    dp_submission_t submission = {.group = group,
                                  .name = name,
                                  .signature = signature,
                                  .in_place = 1,
                                  .last_absmax = 1.0f,
                                  .timeout_ns = 1500000000, /* over when live() ticks */
                                  .request = negotiator};

    (void)dp_negotiator_submit(negotiator, &submission, 1);
}

/* As the constant tables above are not the items' to write. */
static void set_signature(dp_item_t *item, const dp_signature_t *signature)
{
    memcpy(&item->signature, &signature, sizeof(void *));
}

static void write_frame(dp_writer_t *writer, uint64_t position, const dp_item_t *item,
                        const dp_item_t *entry)
{
    dp_frame_header_t header = {position};

    dp_frame_write_header(writer, &header);
    dp_item_write(writer, item);
    if (entry != NULL) dp_item_write_entry(writer, entry);
}

/* Feeds the messages of child and parent that make the group. */
static void make_group(dp_negotiator_t *negotiator)
{
    dp_item_t item, entry;
    uint8_t data[512];
    dp_writer_t writer;

    memset(&item, 0, sizeof(item));
    memset(&entry, 0, sizeof(entry));
    item.kind = DP_ITEM_READY;
    item.id = entry.id = DP_ID_NONE;
    item.group = entry.group = DP_GROUP_UNBORN;
    item.root = item.peer = entry.root = entry.peer = -1;
    item.name = entry.name = "tp";
    item.flags = DP_FLAG_SIGNATURE;
    set_signature(&item, &create);
    submit(negotiator, DP_GROUP_UNBORN, "tp", &create);
    dp_writer_init(&writer, data, sizeof(data));
    write_frame(&writer, 0, &item, NULL);
    dp_negotiator_message(negotiator, 2, data, writer.bytes, 1);
    take_all(negotiator);
    item.kind = DP_ITEM_LAUNCH;
    item.sequence = item.count = 1;
    entry.flags = DP_FLAG_NAME | DP_FLAG_BORN;
    entry.born = GROUP;
    entry.group_index = 1;
    dp_writer_init(&writer, data, sizeof(data));
    write_frame(&writer, 0, &item, &entry);
    dp_negotiator_message(negotiator, 0, data, writer.bytes, 1);
    take_all(negotiator);
}

/* The child is as far as this rank. */
static void follow(dp_negotiator_t *negotiator, unsigned past)
{
    uint32_t group = past & HAS_GROUP ? GROUP : DP_GROUP_WORLD;
    dp_item_t item;
    uint8_t data[512];
    dp_writer_t writer;

    memset(&item, 0, sizeof(item));
    item.id = DP_ID_NONE;
    item.root = item.peer = -1;
    item.name = past & PENDS && !(past & HAS_GROUP) ? "tp" : "wte";
    item.flags = DP_FLAG_SIGNATURE;
    item.group = past & PENDS && !(past & HAS_GROUP) ? DP_GROUP_UNBORN : group;
    item.rank = 2;
    set_signature(&item, item.group == DP_GROUP_UNBORN ? &create : &sum);
    item.kind = DP_ITEM_READY;
    dp_writer_init(&writer, data, sizeof(data));
    write_frame(&writer, 0, &item, NULL);
    if (past & (PENDS | TAKEN) && !(past & JOINS))
        dp_negotiator_message(negotiator, 2, data, writer.bytes, 1);
    item.kind = DP_ITEM_JOIN;
    item.group = group;
    dp_writer_init(&writer, data, sizeof(data));
    write_frame(&writer, 0, &item, NULL);
    if (past & JOINS) dp_negotiator_message(negotiator, 2, data, writer.bytes, 1);
    take_all(negotiator);
}

static void live(dp_negotiator_t *negotiator, const uint8_t *data, size_t bytes)
{
    const unsigned past = data[0];

    submit(negotiator, DP_GROUP_WORLD, "wte", &sum);
    if (past & HAS_GROUP) make_group(negotiator);
    if ((past & PENDS) && (past & HAS_GROUP)) submit(negotiator, GROUP, "wte", &sum);
    if ((past & PENDS) && !(past & HAS_GROUP)) submit(negotiator, DP_GROUP_UNBORN, "tp", &create);
    if (past & TAKEN) take_all(negotiator);
    if (past & JOINS) submit(negotiator, past & HAS_GROUP ? GROUP : DP_GROUP_WORLD, "", &join);
    if (past & CHILD) follow(negotiator, past);
    if (past & LEAVES) dp_negotiator_finalize(negotiator, 2);
    dp_negotiator_message(negotiator, past & FROM_CHILD ? 2 : 0, data + 1, bytes - 1, 3);
    take_all(negotiator);
    dp_negotiator_tick(negotiator, 2000000000);
    take_all(negotiator);
    submit(negotiator, DP_GROUP_WORLD, "wpe", &sum);
    submit(negotiator, GROUP, "wpe", &sum);
    take_all(negotiator);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const hosts[RANKS] = {"a", "b", "c"};
    dp_negotiator_options_t options = {1, RANKS, NULL, NULL, 0, 1 << 20, 1000000000, 0, 0, 2};
    dp_negotiator_t *negotiator = NULL;
    dp_topology_t topology;
    dp_tree_links_t links;

    if (bytes == 0) return 0;
    if (dp_topology_init(&topology, hosts, RANKS) != DP_OK) return 0;
    if (dp_tree_links_init(&links, &topology, 1, 1) == DP_OK) {
        options.topology = &topology;
        options.links = &links;
        if (dp_negotiator_create(&options, &negotiator) == DP_OK) live(negotiator, data, bytes);
        dp_negotiator_destroy(negotiator);
        dp_tree_links_fini(&links);
    }
    dp_topology_fini(&topology);
    return 0;
}

typedef struct seed {
    dp_item_kind_t kind;
    unsigned past;
    uint32_t group;
    uint8_t flags, entry_flags;
} seed_t;

static const seed_t seeds[] = {
    {DP_ITEM_READY, FROM_CHILD, 0, DP_FLAG_SIGNATURE, 0},
    {DP_ITEM_READY, FROM_CHILD, 0, DP_FLAG_SIGNATURE | DP_FLAG_PRIORITY, 0},
    {DP_ITEM_MISMATCH, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_URGENT, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_EXPIRED, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_PARTIAL, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_KEEP, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_LEFT, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_FIN, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_MISSING, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_JOIN, FROM_CHILD, 0, 0, 0},
    {DP_ITEM_READY, FROM_CHILD | HAS_GROUP | PENDS, GROUP, DP_FLAG_SIGNATURE, 0},
    {DP_ITEM_JOIN, FROM_CHILD | HAS_GROUP | PENDS, GROUP, 0, 0},
    {DP_ITEM_JOIN, FROM_CHILD | HAS_GROUP | JOINS, GROUP, 0, 0},
    {DP_ITEM_READY, FROM_CHILD | PENDS, DP_GROUP_UNBORN, DP_FLAG_SIGNATURE, 0},
    {DP_ITEM_MISMATCH, FROM_CHILD, DP_GROUP_UNBORN, 0, 0},
    {DP_ITEM_LACKS, FROM_CHILD, DP_GROUP_UNBORN, 0, 0},
    {DP_ITEM_PARTIAL, FROM_CHILD, DP_GROUP_UNBORN, 0, 0},
    {DP_ITEM_LEFT, FROM_CHILD | PENDS, 0, 0, 0},
    {DP_ITEM_LAUNCH, CHILD, 0, 0, DP_FLAG_NAME},
    {DP_ITEM_FAILURE, 0, 0, DP_FLAG_NAME, 0},
    {DP_ITEM_KEEP, 0, 0, 0, 0},
    {DP_ITEM_CLOSED, 0, 0, 0, 0},
    {DP_ITEM_CLOSED, HAS_GROUP | PENDS | JOINS, GROUP, 0, 0},
    {DP_ITEM_WHO, 0, 0, 0, 0},
    {DP_ITEM_WHO, 0, DP_GROUP_UNBORN, 0, 0},
    {DP_ITEM_WARN, 0, 0, 0, 0},
    {DP_ITEM_WARN, 0, DP_GROUP_UNBORN, 0, 0},
    {DP_ITEM_FATAL, 0, 0, 0, 0},
    {DP_ITEM_SEEK, 0, 0, 0, 0},
    {DP_ITEM_JOINED, HAS_GROUP | JOINS | CHILD, GROUP, 0, 0},
    {DP_ITEM_FAILURE, PENDS, DP_GROUP_UNBORN, DP_FLAG_NAME, 0},
    {DP_ITEM_LAUNCH, HAS_GROUP | PENDS | CHILD, GROUP, 0, DP_FLAG_NAME},
    {DP_ITEM_LAUNCH, HAS_GROUP | JOINS | CHILD, GROUP, 0,
     DP_FLAG_NAME | DP_FLAG_ABSENT | DP_FLAG_SIGNATURE},
    {DP_ITEM_LAUNCH, PENDS | CHILD, DP_GROUP_UNBORN, 0, DP_FLAG_NAME | DP_FLAG_BORN},
    {DP_ITEM_CONTEST, FROM_CHILD, DP_GROUP_UNBORN, 0, 0},
    {DP_ITEM_CONTEST, FROM_CHILD | PENDS | CHILD, DP_GROUP_UNBORN, 0, 0},
};

/* One frame of one item each, as a well-behaved neighbour would send it. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const dp_signature_part_t other_part = {1024, DP_F32};
    static const int32_t other_members[] = {1};
    dp_signature_t other = sum;
    const seed_t *seed = &seeds[which];
    dp_item_t item, entry;
    dp_writer_t writer;

    if (which >= DP_ARRAY_LEN(seeds)) return 0;
    memset(&item, 0, sizeof(item));
    memset(&entry, 0, sizeof(entry));
    item.kind = seed->kind;
    item.flags = seed->flags;
    item.id = entry.id = DP_ID_NONE;
    if (item.kind == DP_ITEM_FAILURE && seed->group != DP_GROUP_UNBORN) item.id = 0;
    if (seed->group != DP_GROUP_UNBORN) entry.id = 0;
    item.group = entry.group = seed->group;
    item.root = item.peer = entry.root = entry.peer = -1;
    item.name = entry.name = seed->group == DP_GROUP_UNBORN ? "tp" : "wte";
    item.text = "because";
    item.rank = 2;
    item.status = DP_ERR_MISMATCH;
    item.sequence = seed->past & HAS_GROUP ? 2 : 1;
    item.count = item.kind == DP_ITEM_LAUNCH;
    item.round = item.missing.count = item.missing.named = 1;
    item.list = members;
    item.list_count = 2;
    item.position = 4;
    item.priority = -2;
    entry.flags = seed->entry_flags;
    entry.absmax = 1.0f;
    entry.absent = entry.born = entry.group_index = 1;
    set_signature(&item, seed->group == DP_GROUP_UNBORN ? &create : &sum);
    set_signature(&entry, &sum);
    other.parts = &other_part;
    if (seed->group == DP_GROUP_UNBORN) other = create;
    if (seed->group == DP_GROUP_UNBORN) other.members = other_members;
    if (seed->group == DP_GROUP_UNBORN) other.member_count = 1;
    item.other = &other;
    dp_writer_init(&writer, data, room);
    dp_write_u8(&writer, (uint8_t)(seed->past | TAKEN));
    write_frame(&writer,
                item.kind == DP_ITEM_FATAL                               ? DP_POSITION_NONE
                : (seed->past & HAS_GROUP) && !(seed->past & FROM_CHILD) ? 1
                                                                         : 0,
                &item, item.kind == DP_ITEM_LAUNCH ? &entry : NULL);
    return writer.failed ? 0 : writer.bytes;
}
