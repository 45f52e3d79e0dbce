/*
 * fleet_reach.c - dprun --check: has every node try the network to every other one, and prints who
 * cannot reach whom at which address and port, and which side's firewall that points to.
 *
 * Called by check_nodes.c on dprun's only thread, once all stations have come, and by fleet.c with
 * what the nodes answer. The nodes do what the ranks of a job would do in dp_init()
 * (runtime/network/reach.h): a first round on the addresses that lead from one node to another, and
 * where it has found no network for all, a second one on all addresses, which waits for every one
 * of them.
 */
#include "launcher/dprun/remote/fleet_internal.h"

#include <stdlib.h>
#include <string.h>

#define SHARE_OF_TIME 3                /* a round takes this part of DP_START_TIMEOUT at most */
#define ANSWER_NS UINT64_C(5000000000) /* for the surveys to come behind the end of a round */
#define LISTED_PAIRS 16
#define LISTED_NODES 64

typedef struct network {
    dp_fleet_t *fleet; /* borrowed */
    FILE *out;
    dp_reach_card_t *lists;     /* [fleet->count] the nodes' addresses */
    dp_reach_card_t *cards;     /* [fleet->count] those on which they listen */
    dp_reach_survey_t *surveys; /* [fleet->count], borrowed from the nodes */
    int *chosen;                /* [fleet->count] */
    const char **names;         /* [fleet->count] */
} network_t;

/* ---- Frames --------------------------------------------------------------------------------- */

void dp_fleet_card(dp_fleet_node_t *node, dp_reader_t *fields)
{
    const size_t bytes = dp_reader_left(fields);

    if (!node->fleet->only_looks || node->has_card) return;
    if (dp_reach_card_read(dp_read_bytes(fields, bytes), bytes, &node->card)) node->has_card = 1;
}

void dp_fleet_survey(dp_fleet_node_t *node, dp_reader_t *fields)
{
    const size_t bytes = dp_reader_left(fields);

    if (!node->fleet->only_looks || node->has_survey) return;
    dp_reach_survey_free(&node->survey);
    node->has_survey = dp_reach_survey_read(dp_read_bytes(fields, bytes), bytes, node->fleet->count,
                                            &node->survey) == DP_OK;
}

/* ---- Rounds --------------------------------------------------------------------------------- */

static int have_cards(const dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        if (!fleet->list[i].has_card) return 0;
    }
    return 1;
}

static int have_surveys(const dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        if (!fleet->list[i].has_survey) return 0;
    }
    return 1;
}

static int is_one_lost(const dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].stage == DP_FLEET_LOST) return 1;
    }
    return 0;
}

/* Runs the event loop until all nodes have sent what is waited for. 0: one is lost, or silent. */
static int await_all(dp_fleet_t *fleet, int (*have)(const dp_fleet_t *fleet), uint64_t deadline_ns)
{
    while (!have(fleet)) {
        if (is_one_lost(fleet) || dp_now_ns() >= deadline_ns) return 0;
        if (event_base_loop(fleet->base, EVLOOP_ONCE) != 0) return 0; /* the beat wakes it */
    }
    return 1;
}

/* Sends all nodes the cards of all, behind `head`. 0: no memory, or more than a frame holds. */
static int send_cards(const network_t *network, uint8_t type, const dp_reach_card_t *cards,
                      const uint8_t *head, size_t head_bytes)
{
    const dp_fleet_t *fleet = network->fleet;
    uint8_t *data = malloc(DP_LINK_FRAME_MAX - 1);
    uint8_t card[DP_REACH_CARD_ROOM];
    dp_writer_t writer;

    if (data == NULL) return 0;
    dp_writer_init(&writer, data, DP_LINK_FRAME_MAX - 1);
    dp_write_bytes(&writer, head, head_bytes);
    dp_write_u32(&writer, (uint32_t)fleet->count);
    for (int i = 0; i < fleet->count; i++) {
        const size_t size = dp_reach_card_write(&cards[i], card);

        dp_write_u16(&writer, (uint16_t)size);
        dp_write_bytes(&writer, card, size);
    }
    for (int i = 0; i < fleet->count && !writer.failed; i++)
        dp_fleet_node_send(&fleet->list[i], type, data, writer.bytes);
    free(data);
    return !writer.failed;
}

/* Waits for the card of each node. 0: a node is lost, or has not answered. */
static int await_cards(const network_t *network, dp_reach_card_t *cards)
{
    dp_fleet_t *fleet = network->fleet;

    if (!await_all(fleet, have_cards, dp_now_ns() + ANSWER_NS)) return 0;
    for (int i = 0; i < fleet->count; i++)
        cards[i] = fleet->list[i].card;
    return 1;
}

/* Has all nodes listen: on the addresses that lead to others, or on all. 0: likewise. */
static int open_nodes(const network_t *network, int is_all)
{
    const uint8_t head = (uint8_t)is_all;

    for (int i = 0; i < network->fleet->count; i++)
        network->fleet->list[i].has_card = 0;
    return send_cards(network, DP_REMOTE_OPEN, network->lists, &head, sizeof(head)) &&
           await_cards(network, network->cards);
}

/* 0: likewise. */
static int run_round(network_t *network, int is_thorough)
{
    dp_fleet_t *fleet = network->fleet;
    const uint64_t limit_ns = fleet->command->config.start_timeout_ns / SHARE_OF_TIME;
    uint8_t head[5];
    dp_writer_t writer;

    dp_writer_init(&writer, head, sizeof(head));
    dp_write_u8(&writer, (uint8_t)is_thorough);
    dp_write_u32(&writer, (uint32_t)(limit_ns / 1000000));
    for (int i = 0; i < fleet->count; i++)
        fleet->list[i].has_survey = 0;
    if (!send_cards(network, DP_REMOTE_TRY, network->cards, head, sizeof(head)) ||
        !await_all(fleet, have_surveys, dp_now_ns() + limit_ns + ANSWER_NS))
        return 0;
    for (int i = 0; i < fleet->count; i++)
        network->surveys[i] = fleet->list[i].survey;
    return 1;
}

/* ---- Words ---------------------------------------------------------------------------------- */

static void print_line(const network_t *network, const char *title, const char *text)
{
    fprintf(network->out, "%-7s %s\n", title, text);
}

/* Each address at which one node does not reach another; 0: it reaches it somewhere. */
static int print_pair(const network_t *network, int from, const dp_reach_try_t *one)
{
    const dp_reach_card_t *card = &network->cards[one->node];

    if (dp_reach_is_reached(&network->surveys[from], one->node)) return 0;
    fprintf(network->out, "        %s -> %s:", network->names[from], network->names[one->node]);
    for (int i = 0; i < card->count; i++) {
        char ip[DP_IP_TEXT];

        fprintf(network->out, "%s %s port %u (%s): %s", i > 0 ? ";" : "",
                dp_ip_format(&card->addresses[i].ip, ip), card->ports[i], card->addresses[i].name,
                dp_reach_words(one->how[i]));
    }
    fprintf(network->out, "%s\n", card->count == 0 ? " it has no address" : "");
    return 1;
}

static void print_pairs(const network_t *network)
{
    int listed = 0;
    int more = 0;

    for (int from = 0; from < network->fleet->count; from++) {
        const dp_reach_survey_t *survey = &network->surveys[from];

        for (int i = 0; i < survey->count; i++) {
            if (listed < LISTED_PAIRS) {
                listed += print_pair(network, from, &survey->tries[i]);
            } else {
                more += !dp_reach_is_reached(survey, survey->tries[i].node);
            }
        }
    }
    if (more > 0) fprintf(network->out, "        and %d more\n", more);
}

static void print_fault(const network_t *network)
{
    const char *interface = network->fleet->command->config.net_interface;
    char text[DP_ERROR_TEXT_MAX];

    print_line(network, "FAILED", "network: there is none on which every node reaches every other");
    print_pairs(network);
    for (int i = 0; i < network->fleet->count && interface[0] != '\0'; i++) {
        if (network->cards[i].count > 0) continue;
        fprintf(network->out, "        -> %s has no address on the interface %s\n",
                network->names[i], interface);
        return;
    }
    dp_reach_explain(network->cards, network->surveys, network->fleet->count, network->chosen,
                     network->names, text, sizeof(text));
    fprintf(network->out, "        -> %s\n", text);
}

static void print_choice(const network_t *network)
{
    const int count = network->fleet->count;

    fprintf(network->out, "ok      network: %s reaches %s, on",
            count <= DP_REACH_ALL_CHECK ? "every node" : "each node",
            count <= DP_REACH_ALL_CHECK ? "every other one" : "those that it was to try");
    for (int i = 0; i < dp_min(count, LISTED_NODES); i++) {
        const dp_interface_address_t *at = &network->cards[i].addresses[network->chosen[i]];
        char ip[DP_IP_TEXT];

        fprintf(network->out, "%s %s %s (%s)", i > 0 ? "," : "", network->names[i],
                dp_ip_format(&at->ip, ip), at->name);
    }
    fprintf(network->out, "%s\n", count > LISTED_NODES ? ", ..." : "");
}

/* ---- All of it ------------------------------------------------------------------------------ */

static int are_some_left_out(const network_t *network)
{
    for (int i = 0; i < network->fleet->count; i++)
        if (network->cards[i].count < network->lists[i].count) return 1;
    return 0;
}

static int try_network(network_t *network)
{
    dp_fleet_t *fleet = network->fleet;
    int is_whole = 0;

    for (int is_thorough = 0; is_thorough < 2; is_thorough++) {
        if (is_thorough == 0 || is_whole) {
            if (!open_nodes(network, is_whole)) {
                print_line(network, "FAILED", "network: not all nodes have said where they listen");
                return 1;
            }
        }
        if (!run_round(network, is_thorough)) {
            print_line(network, "FAILED", "network: not all nodes have tried it");
            return 1;
        }
        if (dp_reach_choose(network->cards, network->surveys, fleet->count, network->chosen) == 0) {
            print_choice(network);
            return 0;
        }
        is_whole = are_some_left_out(network);
        if (!is_whole && !dp_reach_is_open(network->cards, network->surveys, fleet->count)) break;
    }
    print_fault(network);
    return 1;
}

int dp_fleet_reach(dp_fleet_t *fleet, FILE *out)
{
    const size_t count = (size_t)fleet->count;
    network_t network = {.fleet = fleet, .out = out};
    int failed = 1;

    if (fleet->count < 2) return 0;
    if (!fleet->is_running || is_one_lost(fleet)) {
        print_line(&network, "", "network: not tried, for not all nodes are there");
        return 0; /* each of them was counted */
    }
    network.lists = calloc(count, sizeof(*network.lists));
    network.cards = calloc(count, sizeof(*network.cards));
    network.surveys = calloc(count, sizeof(*network.surveys));
    network.chosen = calloc(count, sizeof(*network.chosen));
    network.names = calloc(count, sizeof(*network.names));
    if (network.lists == NULL || network.cards == NULL || network.surveys == NULL ||
        network.chosen == NULL || network.names == NULL) {
        print_line(&network, "FAILED", "network: out of memory");
    } else if (!await_cards(&network, network.lists)) {
        print_line(&network, "FAILED", "network: not all nodes have said what addresses they have");
    } else {
        for (int i = 0; i < fleet->count; i++)
            network.names[i] = fleet->list[i].name;
        failed = try_network(&network);
    }
    free(network.lists);
    free(network.cards);
    free(network.surveys);
    free(network.chosen);
    free(network.names);
    return failed;
}
