/*
 * test_reach.c - the nodes of a job find addresses on which all reach each other, or the sentence
 * that says which side of which connection is closed.
 *
 * The choice is tested on made-up cards and surveys; listening and trying over loopback.
 */
#include "runtime/network/reach.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define NODES 40
#define SECOND 1000000000ull

/* ---- Partners ------------------------------------------------------------------------------- */

static int is_partner(int node, int other, int node_count, int arity)
{
    int partners[NODES * 32];
    const int count = dp_reach_partners(node, node_count, DP_REACH_ALL, arity, partners);

    for (int i = 0; i < count; i++) {
        if (i > 0) assert_true(partners[i] > partners[i - 1]);
        assert_int_not_equal(partners[i], node);
        if (partners[i] == other) return 1;
    }
    return 0;
}

static void reach_small_worlds_try_every_pair(void **state)
{
    (void)state;
    for (int count = 1; count <= DP_REACH_ALL; count++) {
        for (int node = 0; node < count; node++) {
            int partners[NODES];

            assert_int_equal(dp_reach_partners(node, count, DP_REACH_ALL, 8, partners), count - 1);
        }
    }
}

static void reach_partners_are_mutual_and_include_the_tree(void **state)
{
    (void)state;
    for (int count = DP_REACH_ALL + 1; count < NODES; count += 5) {
        for (int arity = 1; arity <= 64; arity *= 4) {
            for (int node = 0; node < count; node++) {
                assert_true(is_partner(node, (node + 1) % count, count, arity));
                if (node > 0) assert_true(is_partner(node, (node - 1) / arity, count, arity));
                for (int other = 0; other < count; other++)
                    assert_int_equal(is_partner(node, other, count, arity),
                                     is_partner(other, node, count, arity));
            }
        }
    }
}

static void reach_partners_of_a_large_world_are_few(void **state)
{
    static int partners[1000];

    (void)state;
    assert_true(dp_reach_partners(0, 1000, DP_REACH_ALL, 8, partners) <= 2 * 10 + 8);
    assert_true(dp_reach_partners(999, 1000, DP_REACH_ALL, 8, partners) <= 2 * 10 + 8);
}

/* ---- Choosing ------------------------------------------------------------------------------- */

/* Nodes with made-up interfaces: addresses "10.1.0.N/24" and what their partners find. */
typedef struct world {
    int count;
    dp_reach_card_t cards[NODES];
    dp_reach_survey_t surveys[NODES];
    int chosen[NODES];
} world_t;

static void world_init(world_t *world, int count)
{
    memset(world, 0, sizeof(*world));
    world->count = count;
    for (int node = 0; node < count; node++) {
        int partners[NODES];
        dp_reach_survey_t *survey = &world->surveys[node];

        survey->count = dp_reach_partners(node, count, DP_REACH_ALL, 8, partners);
        survey->tries = calloc((size_t)survey->count + 1, sizeof(*survey->tries));
        assert_non_null(survey->tries);
        for (int i = 0; i < survey->count; i++)
            survey->tries[i].node = partners[i];
    }
}

static void world_fini(world_t *world)
{
    for (int node = 0; node < world->count; node++)
        dp_reach_survey_free(&world->surveys[node]);
}

/* Gives every node an interface; %d of the format is the node's number, if there is one. */
static void add_interface(world_t *world, const char *name, const char *format, int prefix,
                          uint32_t speed, dp_reach_how_t how)
{
    for (int node = 0; node < world->count; node++) {
        dp_reach_card_t *card = &world->cards[node];
        dp_interface_address_t *address = &card->addresses[card->count];
        char text[64];

        snprintf(text, sizeof(text), format, node + 1); /* NOLINT: a format of these tests */
        assert_true(dp_ip_parse(text, &address->ip));
        address->prefix = (uint8_t)prefix;
        address->speed = speed;
        snprintf(address->name, sizeof(address->name), "%s", name);
        card->ports[card->count] = (uint16_t)(4000 + card->count);
        for (int from = 0; from < world->count; from++) {
            for (int i = 0; i < world->surveys[from].count; i++) {
                dp_reach_try_t *one = &world->surveys[from].tries[i];

                if (one->node == node) one->how[card->count] = (uint8_t)how;
            }
        }
        card->count++;
    }
}

static void find(world_t *world, int from, int to, int index, dp_reach_how_t how)
{
    for (int i = 0; i < world->surveys[from].count; i++) {
        if (world->surveys[from].tries[i].node == to)
            world->surveys[from].tries[i].how[index] = (uint8_t)how;
    }
}

static int choose(world_t *world)
{
    return dp_reach_choose(world->cards, world->surveys, world->count, world->chosen);
}

static const char *explain(world_t *world)
{
    static const char *const names[] = {"a (rank 0)", "b (rank 2)", "c (rank 4)"};
    static char text[DP_ERROR_TEXT_MAX];

    dp_reach_explain(world->cards, world->surveys, world->count, world->chosen, names, text,
                     sizeof(text));
    return text;
}

static void expect_text(world_t *world, const char *expected)
{
    const char *text = explain(world);

    if (strstr(text, expected) == NULL) fail_msg("'%s' is not in '%s'", expected, text);
}

static void reach_bridge_with_one_address_everywhere_is_not_chosen(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "docker0", "172.17.0.1", 16, 0, DP_REACH_OTHER_NODE);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 1000, DP_REACH_YES);
    assert_int_equal(choose(&world), 0);
    for (int node = 0; node < 3; node++)
        assert_int_equal(world.chosen[node], 1);
    world_fini(&world);
}

static void reach_faster_of_two_links_is_chosen(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 1000, DP_REACH_YES);
    add_interface(&world, "eth1", "10.2.0.%d", 24, 100000, DP_REACH_YES);
    assert_int_equal(choose(&world), 0);
    assert_int_equal(world.chosen[0], 1);
    find(&world, 2, 0, 1, DP_REACH_SILENT); /* node 0 is not reached there by all */
    assert_int_equal(choose(&world), 0);
    assert_int_equal(world.chosen[0], 0);
    assert_int_equal(world.chosen[1], 1);
    world_fini(&world);
}

static void reach_direct_link_goes_before_a_faster_one_behind_a_router(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 2);
    add_interface(&world, "wan0", "203.0.%d.1", 24, 100000, DP_REACH_YES);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 1000, DP_REACH_YES);
    assert_int_equal(choose(&world), 0);
    assert_int_equal(world.chosen[0], 1);
    world_fini(&world);
}

static void reach_version_6_alone_is_chosen(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 2);
    add_interface(&world, "eth0", "2001:db8::%d", 64, 0, DP_REACH_YES);
    assert_int_equal(choose(&world), 0);
    assert_int_equal(world.chosen[1], 0);
    world_fini(&world);
}

/* UCX connects addresses of one version: that of which all nodes have one that all others reach. */
static void reach_one_version_is_chosen_for_all(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    add_interface(&world, "eth0", "2001:db8::%d", 64, 0, DP_REACH_YES);
    assert_int_equal(choose(&world), 0);
    for (int node = 0; node < 3; node++)
        assert_int_equal(world.chosen[node], 0);
    find(&world, 0, 1, 0, DP_REACH_UNKNOWN); /* its hardware address was still asked for */
    assert_int_equal(choose(&world), 0);
    for (int node = 0; node < 3; node++)
        assert_int_equal(world.chosen[node], 1);
    find(&world, 1, 2, 1, DP_REACH_UNKNOWN); /* none serves all as yet: worth another round */
    assert_int_equal(choose(&world), 1);
    assert_true(dp_reach_is_open(world.cards, world.surveys, 3));
    find(&world, 0, 1, 0, DP_REACH_SILENT);
    assert_true(dp_reach_is_open(world.cards, world.surveys, 3));
    find(&world, 1, 2, 1, DP_REACH_REFUSED);
    assert_false(dp_reach_is_open(world.cards, world.surveys, 3));
    assert_int_equal(choose(&world), 1);
    expect_text(&world, "all reach b (rank 2) at 2001:db8::2 alone, and not all reach c (rank 4) "
                        "by IPv6; one version of IP must lead to every node");
    world.cards[2].count = 1;
    assert_int_equal(choose(&world), 1);
    expect_text(&world, "all reach b (rank 2) at 2001:db8::2 alone, and c (rank 4) has no address "
                        "of IPv6");
    world_fini(&world);
}

static void reach_unknown_address_is_worth_another_round(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    add_interface(&world, "eth1", "10.2.0.%d", 24, 0, DP_REACH_YES);
    find(&world, 0, 1, 0, DP_REACH_UNKNOWN);
    assert_int_equal(choose(&world), 0);
    find(&world, 2, 1, 1, DP_REACH_SILENT);
    assert_int_equal(choose(&world), 1);
    assert_true(dp_reach_is_open(world.cards, world.surveys, 3));
    find(&world, 0, 1, 0, DP_REACH_SILENT);
    assert_int_equal(choose(&world), 1);
    assert_false(dp_reach_is_open(world.cards, world.surveys, 3));
    world_fini(&world);
}

static void reach_firewall_for_what_comes_in_is_told(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    find(&world, 0, 1, 0, DP_REACH_SILENT);
    find(&world, 2, 1, 0, DP_REACH_SILENT);
    assert_int_equal(choose(&world), 1);
    expect_text(&world, "a (rank 0) does not reach b (rank 2) at 10.1.0.2 port 4000 (eth0): no "
                        "answer. No node does, while b (rank 2) reaches a (rank 0): a firewall on "
                        "b (rank 2) stops what comes in (TCP)");
    world_fini(&world);
}

static void reach_firewall_for_what_goes_out_is_told(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    find(&world, 0, 1, 0, DP_REACH_NO_ROUTE);
    find(&world, 0, 2, 0, DP_REACH_NO_ROUTE);
    assert_int_equal(choose(&world), 2);
    expect_text(&world, "a (rank 0) does not reach b (rank 2) at 10.1.0.2 port 4000 (eth0): no "
                        "route, or a firewall says so. Other nodes reach b (rank 2), so a firewall "
                        "on a (rank 0) stops what goes out (TCP)");
    world_fini(&world);
}

static void reach_other_causes_are_told(void **state)
{
    world_t world;

    (void)state;
    world_init(&world, 2); /* one direction of two nodes: nobody can tell which side */
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    find(&world, 0, 1, 0, DP_REACH_SILENT);
    assert_int_equal(choose(&world), 1);
    expect_text(&world, "b (rank 2) reaches a (rank 0): a firewall stops what comes in to "
                        "b (rank 2), or goes out of a (rank 0) (TCP)");
    find(&world, 1, 0, 0, DP_REACH_SILENT);
    assert_int_equal(choose(&world), 2);
    expect_text(&world, "its network leads to no other node");
    world_fini(&world);
    world_init(&world, 3); /* between two of three */
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    find(&world, 0, 1, 0, DP_REACH_SILENT);
    assert_int_equal(choose(&world), 1);
    expect_text(&world, "Other nodes reach b (rank 2): something between the two stops it");
    world_fini(&world);
    world_init(&world, 3); /* each partner finds another address */
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_YES);
    add_interface(&world, "eth1", "10.2.0.%d", 24, 0, DP_REACH_YES);
    find(&world, 0, 1, 0, DP_REACH_REFUSED);
    find(&world, 2, 1, 1, DP_REACH_STRANGER);
    assert_int_equal(choose(&world), 1);
    expect_text(&world,
                "a (rank 0) does not reach b (rank 2) at 10.1.0.2 port 4000 (eth0): refused");
    expect_text(&world, "no address serves all");
    world.cards[0].addresses[0] = world.cards[1].addresses[0]; /* a bridge of containers */
    expect_text(&world, "port 4000 (eth0): a (rank 0) has this address, too");
    world.cards[1].count = 0; /* a node with loopback alone */
    assert_int_equal(choose(&world), 1);
    expect_text(&world, "b (rank 2) has no network address but that of loopback");
    world_fini(&world);
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

static void reach_card_survives_the_wire(void **state)
{
    uint8_t data[DP_REACH_CARD_ROOM];
    dp_reach_card_t read;
    world_t world;
    size_t bytes;

    (void)state;
    world_init(&world, 2);
    for (int i = 0; i < DP_INTERFACE_ADDRESSES; i++)
        add_interface(&world, "enp129s0f0np0-x", "2001:db8:ffff:ffff:ffff:ffff:ffff:%d", 64, 400000,
                      DP_REACH_YES);
    bytes = dp_reach_card_write(&world.cards[1], data);
    assert_true(bytes > 0); /* the largest fits */
    assert_true(dp_reach_card_read(data, bytes, &read));
    assert_memory_equal(&read, &world.cards[1], sizeof(read));
    for (size_t cut = 0; cut < bytes; cut++)
        assert_false(dp_reach_card_read(data, cut, &read));
    world_fini(&world);
}

static void reach_survey_survives_the_wire(void **state)
{
    uint8_t data[512];
    dp_reach_survey_t read;
    world_t world;
    size_t bytes;

    (void)state;
    world_init(&world, 3);
    add_interface(&world, "eth0", "10.1.0.%d", 24, 0, DP_REACH_REFUSED);
    bytes = dp_reach_survey_write(&world.surveys[1], data, sizeof(data));
    assert_int_equal(bytes, dp_reach_survey_bytes(&world.surveys[1]));
    assert_int_equal(dp_reach_survey_read(data, bytes, 3, &read), DP_OK);
    assert_int_equal(read.count, 2);
    assert_int_equal(read.tries[1].node, 2);
    assert_int_equal(read.tries[1].how[0], DP_REACH_REFUSED);
    dp_reach_survey_free(&read);
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(dp_reach_survey_read(data, cut, 3, &read), DP_ERR_SYSTEM);
    assert_int_equal(dp_reach_survey_read(data, bytes, 2, &read),
                     DP_ERR_SYSTEM); /* there is no 2 */
    world_fini(&world);
}

/* ---- Addresses that are worth a try --------------------------------------------------------- */

static void add_to_list(dp_reach_card_t *list, const char *text, const char *name)
{
    dp_interface_address_t *address = &list->addresses[list->count++];

    assert_true(dp_ip_parse(text, &address->ip));
    snprintf(address->name, sizeof(address->name), "%s", name);
}

/* The routes of a node 10.0.0.1: 10.0.0.x and the world on eth0, fd00::/64 on eth0, 172.17.0.x on
 * docker0, 10.9.x.x on eth1. 10.7.0.x is not reached. */
static int made_up_source(const dp_ip_t *to, dp_ip_t *from)
{
    char text[DP_IP_TEXT];

    dp_ip_format(to, text);
    if (strncmp(text, "10.7.", 5) == 0) return 0;
    if (strncmp(text, "172.17.", 7) == 0) return dp_ip_parse("172.17.0.1", from);
    if (strncmp(text, "10.9.", 5) == 0) return dp_ip_parse("10.9.0.1", from);
    return dp_ip_parse(strchr(text, ':') != NULL ? "fd00::1" : "10.0.0.1", from);
}

static void expect_needed(const dp_reach_card_t *lists, int count, const char *expected)
{
    dp_reach_card_t needed;
    char text[256] = "";
    char ip[DP_IP_TEXT];

    dp_reach_list_needed(lists, count, 0, made_up_source, &needed);
    for (int i = 0; i < needed.count; i++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ",
                 dp_ip_format(&needed.addresses[i].ip, ip));
        assert_int_equal(needed.ports[i], 0);
    }
    assert_string_equal(text, expected);
}

static void reach_listens_where_routes_to_other_nodes_start(void **state)
{
    dp_reach_card_t lists[3] = {{0}};

    (void)state;
    add_to_list(&lists[0], "10.0.0.1", "eth0");
    add_to_list(&lists[0], "172.17.0.1", "docker0");
    add_to_list(&lists[0], "10.9.0.1", "eth1");
    add_to_list(&lists[0], "fd00::1", "eth0");
    expect_needed(lists, 3, ""); /* nobody there has an address */
    add_to_list(&lists[1], "10.7.0.2", "eth3");
    add_to_list(&lists[1], "172.17.0.1", "docker0"); /* its own bridge */
    expect_needed(lists, 2, "");
    add_to_list(&lists[1], "10.0.0.2", "eth0");
    expect_needed(lists, 2, "10.0.0.1 ");
    add_to_list(&lists[2], "fd00::3", "eth0");
    expect_needed(lists, 3, "10.0.0.1 fd00::1 ");
    add_to_list(&lists[2], "10.9.0.3", "eth1");
    expect_needed(lists, 3, "10.0.0.1 10.9.0.1 fd00::1 ");
}

static void reach_source_of_loopback_is_loopback(void **state)
{
    dp_ip_t to;
    dp_ip_t from;

    (void)state;
    assert_true(dp_ip_parse("127.0.0.1", &to));
    if (!dp_ip_source(&to, &from)) skip(); /* a machine without loopback */
    assert_true(dp_ip_is_equal(&to, &from));
}

/* ---- Listening and trying ------------------------------------------------------------------- */

static dp_reach_t *open_node(const dp_secret_t *secret, int node)
{
    dp_error_t error = {DP_OK, ""};
    dp_reach_card_t list;
    dp_reach_t *reach;

    dp_reach_list("lo", &list);
    if (dp_reach_open(secret, node, &list, &reach, &error) != DP_OK) fail_msg("%s", error.text);
    if (dp_reach_own_card(reach)->count == 0) {
        dp_reach_close(reach);
        skip(); /* a machine without loopback */
    }
    return reach;
}

static dp_reach_how_t try_first(dp_reach_t *from, const dp_reach_card_t *cards, int to,
                                uint64_t limit_ns)
{
    dp_error_t error = {DP_OK, ""};
    dp_reach_how_t how = DP_REACH_UNKNOWN;
    dp_reach_survey_t survey;

    assert_int_equal(
        dp_reach_try(from, cards, 3, DP_REACH_ALL, 8, 1, dp_now_ns() + limit_ns, &survey, &error),
        DP_OK);
    for (int i = 0; i < survey.count; i++) {
        if (survey.tries[i].node == to) how = (dp_reach_how_t)survey.tries[i].how[0];
    }
    dp_reach_survey_free(&survey);
    return how;
}

static void reach_finds_the_right_node_and_no_other(void **state)
{
    dp_secret_t secret, other;
    dp_reach_card_t cards[3] = {{0}};
    dp_reach_t *nodes[3];

    (void)state;
    dp_random(&secret, sizeof(secret));
    dp_random(&other, sizeof(other));
    nodes[0] = open_node(&secret, 0);
    nodes[1] = open_node(&secret, 1);
    nodes[2] = open_node(&other, 2); /* of another job */
    for (int i = 0; i < 2; i++)
        cards[i] = *dp_reach_own_card(nodes[i]);
    assert_int_equal(try_first(nodes[0], cards, 1, 60 * SECOND), DP_REACH_YES);
    assert_int_equal(try_first(nodes[1], cards, 0, 60 * SECOND), DP_REACH_YES);
    cards[2] = *dp_reach_own_card(nodes[2]);
    assert_int_equal(try_first(nodes[0], cards, 2, 2 * SECOND), DP_REACH_STRANGER);
    cards[2] = cards[1]; /* the address leads to another node, as that of docker0 does */
    assert_int_equal(try_first(nodes[0], cards, 2, 60 * SECOND), DP_REACH_OTHER_NODE);
    cards[1] = cards[0]; /* or back to this one */
    assert_int_equal(try_first(nodes[0], cards, 1, 60 * SECOND), DP_REACH_OTHER_NODE);
    cards[1] = *dp_reach_own_card(nodes[1]);
    dp_reach_close(nodes[1]);
    assert_int_equal(try_first(nodes[0], cards, 1, 60 * SECOND), DP_REACH_REFUSED);
    dp_reach_close(nodes[0]);
    dp_reach_close(nodes[2]);
}

/* A listener that takes connections and says nothing. */
static int open_silent(uint16_t *port)
{
    struct sockaddr_storage address;
    dp_ip_t ip;
    socklen_t bytes;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(dp_ip_parse("127.0.0.1", &ip));
    bytes = dp_ip_socket_address(&ip, 0, &address);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
    return fd;
}

static void reach_waits_for_no_silent_address_once_all_partners_are_known(void **state)
{
    dp_error_t error = {DP_OK, ""};
    dp_secret_t secret;
    dp_reach_card_t cards[2] = {{0}};
    dp_reach_t *nodes[2];
    dp_reach_survey_t survey;
    int silent, last;

    (void)state;
    dp_random(&secret, sizeof(secret));
    nodes[0] = open_node(&secret, 0);
    nodes[1] = open_node(&secret, 1);
    cards[0] = *dp_reach_own_card(nodes[0]);
    cards[1] = *dp_reach_own_card(nodes[1]);
    last = cards[1].count == DP_INTERFACE_ADDRESSES ? cards[1].count - 1 : cards[1].count++;
    cards[1].addresses[last] = cards[1].addresses[0];
    silent = open_silent(&cards[1].ports[last]);
    /* A wait for this deadline would outlast the test's own limit. */
    assert_int_equal(dp_reach_try(nodes[0], cards, 2, DP_REACH_ALL, 8, 0,
                                  dp_now_ns() + 3600 * SECOND, &survey, &error),
                     DP_OK);
    assert_int_equal(survey.tries[0].how[0], DP_REACH_YES);
    assert_int_equal(survey.tries[0].how[last], DP_REACH_UNKNOWN);
    dp_reach_survey_free(&survey);
    assert_int_equal(dp_reach_try(nodes[0], cards, 2, DP_REACH_ALL, 8, 1, dp_now_ns() + 2 * SECOND,
                                  &survey, &error),
                     DP_OK);
    assert_int_equal(survey.tries[0].how[last], DP_REACH_SILENT);
    dp_reach_survey_free(&survey);
    close(silent);
    dp_reach_close(nodes[0]);
    dp_reach_close(nodes[1]);
}

static void reach_answers_while_many_strangers_stay(void **state)
{
    dp_secret_t secret;
    dp_reach_card_t cards[3] = {{0}};
    struct sockaddr_storage address;
    dp_reach_t *nodes[2];
    int strangers[200];

    (void)state;
    dp_random(&secret, sizeof(secret));
    nodes[0] = open_node(&secret, 0);
    nodes[1] = open_node(&secret, 1);
    cards[1] = *dp_reach_own_card(nodes[1]);
    for (int i = 0; i < 200; i++) {
        const socklen_t bytes =
            dp_ip_socket_address(&cards[1].addresses[0].ip, cards[1].ports[0], &address);

        strangers[i] = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(strangers[i], (struct sockaddr *)&address, bytes), 0);
        (void)!write(strangers[i], "GET / HTTP/1.1\r\n", (size_t)(i % 17));
    }
    assert_int_equal(try_first(nodes[0], cards, 1, 60 * SECOND), DP_REACH_YES);
    for (int i = 0; i < 200; i++)
        close(strangers[i]);
    dp_reach_close(nodes[0]);
    dp_reach_close(nodes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reach_small_worlds_try_every_pair),
        cmocka_unit_test(reach_partners_are_mutual_and_include_the_tree),
        cmocka_unit_test(reach_partners_of_a_large_world_are_few),
        cmocka_unit_test(reach_bridge_with_one_address_everywhere_is_not_chosen),
        cmocka_unit_test(reach_faster_of_two_links_is_chosen),
        cmocka_unit_test(reach_direct_link_goes_before_a_faster_one_behind_a_router),
        cmocka_unit_test(reach_version_6_alone_is_chosen),
        cmocka_unit_test(reach_one_version_is_chosen_for_all),
        cmocka_unit_test(reach_unknown_address_is_worth_another_round),
        cmocka_unit_test(reach_firewall_for_what_comes_in_is_told),
        cmocka_unit_test(reach_firewall_for_what_goes_out_is_told),
        cmocka_unit_test(reach_other_causes_are_told),
        cmocka_unit_test(reach_card_survives_the_wire),
        cmocka_unit_test(reach_survey_survives_the_wire),
        cmocka_unit_test(reach_listens_where_routes_to_other_nodes_start),
        cmocka_unit_test(reach_source_of_loopback_is_loopback),
        cmocka_unit_test(reach_finds_the_right_node_and_no_other),
        cmocka_unit_test(reach_waits_for_no_silent_address_once_all_partners_are_known),
        cmocka_unit_test(reach_answers_while_many_strangers_stay),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
