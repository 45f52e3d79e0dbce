/*
 * network.c - finds the network interface that leads to the other nodes, by trying (reach.h).
 *
 * Called by init.c in dp_init(), on the program's thread. The first rank of each node listens
 * and tries; all ranks exchange what was found, and conclude the same from it. Ranks of one
 * network, which pretended nodes are, use loopback and try nothing.
 *
 *     exchange      each first rank has                                   listens on
 *
 *     addresses     its node's addresses                                  nothing
 *     network       chosen those to which its routes to the others lead   these
 *     paths         tried those of the others                             these
 *     all, paths again   where these serve no purpose: tried all          all its addresses
 */
#include "coordinator/api/world/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "coordinator/api/context/values.h"
#include "runtime/network/reach.h"

#define TRY_NS 10000000000ull  /* for every partner to answer at one address */
#define AGAIN_NS 3000000000ull /* for the other addresses, where no address served all */
#define SHARE_OF_TIME 2        /* at most this part of what is left of DP_START_TIMEOUT */
#define LINK_LOOK_NS 5000000   /* until an interface whose link comes up is looked at again */

typedef struct search {
    dp_context_t *context; /* borrowed */
    int node_count;
    int node;               /* this rank's */
    dp_reach_t *reach;      /* the node's first rank, while it listens */
    dp_reach_card_t *lists; /* [node_count] addresses without ports, likewise below */
    dp_reach_card_t *cards;
    dp_reach_survey_t *surveys;
    int *chosen;
} search_t;

/* ---- Exchanges ------------------------------------------------------------------------------ */

static int is_first(const search_t *search)
{
    return dp_topology_leader(&search->context->topology, search->node) == search->context->rank;
}

/* own: this node's, of its first rank. */
static dp_status_t exchange_cards(search_t *search, const char *name, const dp_reach_card_t *card,
                                  dp_reach_card_t *cards, uint64_t deadline_ns, dp_error_t *error)
{
    dp_context_t *context = search->context;
    uint8_t own[DP_REACH_CARD_ROOM];
    const size_t own_bytes = is_first(search) ? dp_reach_card_write(card, own) : 0;
    void **values = NULL;
    size_t *bytes = NULL;
    dp_status_t status;

    status =
        dp_context_exchange(context, name, own, own_bytes, &values, &bytes, deadline_ns, error);
    for (int node = 0; status == DP_OK && node < search->node_count; node++) {
        const int rank = dp_topology_leader(&context->topology, node);

        if (dp_reach_card_read(values[rank], bytes[rank], &cards[node])) continue;
        status =
            dp_error_set(error, DP_ERR_SYSTEM, "rank %d sent addresses that make no sense", rank);
    }
    dp_context_free_values(context, values, bytes);
    return status;
}

/* own: this node's survey, written by its first rank. */
static dp_status_t exchange_surveys(search_t *search, const dp_reach_survey_t *own,
                                    const char *name, uint64_t deadline_ns, dp_error_t *error)
{
    dp_context_t *context = search->context;
    const size_t own_bytes = own->tries == NULL ? 0 : dp_reach_survey_bytes(own);
    uint8_t *data = malloc(own_bytes + 1);
    void **values = NULL;
    size_t *bytes = NULL;
    dp_status_t status;

    if (data == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the network");
    if (own_bytes > 0) dp_reach_survey_write(own, data, own_bytes);
    status =
        dp_context_exchange(context, name, data, own_bytes, &values, &bytes, deadline_ns, error);
    free(data);
    for (int node = 0; status == DP_OK && node < search->node_count; node++) {
        const int rank = dp_topology_leader(&context->topology, node);

        dp_reach_survey_free(&search->surveys[node]);
        status = dp_reach_survey_read(values[rank], bytes[rank], search->node_count,
                                      &search->surveys[node]);
        if (status != DP_OK)
            dp_error_set(error, status, "what rank %d found of the network makes no sense", rank);
    }
    dp_context_free_values(context, values, bytes);
    return status;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static dp_status_t try_once(search_t *search, int is_thorough, uint64_t deadline_ns,
                            dp_error_t *error)
{
    const uint64_t now_ns = dp_now_ns();
    const uint64_t most_ns = is_thorough ? AGAIN_NS : TRY_NS;
    const uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    dp_reach_survey_t own = {0, NULL};
    dp_status_t status = DP_OK;

    if (search->reach != NULL) {
        status = dp_reach_try(search->reach, search->cards, search->node_count, DP_REACH_ALL,
                              search->context->config.tree_arity, is_thorough,
                              now_ns + dp_min(most_ns, left_ns / SHARE_OF_TIME), &own, error);
    }
    if (status == DP_OK) {
        status = exchange_surveys(search, &own, is_thorough ? "paths again" : "paths", deadline_ns,
                                  error);
    }
    dp_reach_survey_free(&own);
    return status;
}

static dp_status_t explain(const search_t *search, dp_error_t *error)
{
    const dp_topology_t *topology = &search->context->topology;
    const size_t count = (size_t)search->node_count;
    char(*names)[80] = calloc(count, sizeof(*names));
    const char **list = calloc(count, sizeof(*list));
    char text[DP_ERROR_TEXT_MAX];

    if (names == NULL || list == NULL) {
        free(names);
        free(list);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for %zu nodes", count);
    }
    for (int node = 0; node < search->node_count; node++) {
        snprintf(names[node], sizeof(names[node]), "%.50s (rank %d)", topology->host_name[node],
                 dp_topology_leader(topology, node));
        list[node] = names[node];
    }
    dp_reach_explain(search->cards, search->surveys, search->node_count, search->chosen, list, text,
                     sizeof(text));
    free(names);
    free(list);
    return dp_error_set(error, DP_ERR_SYSTEM, "no network for all nodes: %s", text);
}

static void adopt_chosen_network(const search_t *search)
{
    dp_context_t *context = search->context;
    const dp_interface_address_t *own =
        &search->cards[search->node].addresses[search->chosen[search->node]];
    char ip[DP_IP_TEXT];

    _Static_assert(sizeof(context->config.net_interface) >= IF_NAMESIZE, "any name fits");
    snprintf(context->config.net_interface, sizeof(context->config.net_interface), "%s", own->name);
    context->config.net_version = own->ip.version;
    context->network_ip = own->ip;
    if (search->reach == NULL) return; /* one rank of a node says it */
    dp_log_info(&context->log, "network: %s with %s leads to the other %s", own->name,
                dp_ip_format(&own->ip, ip), search->node_count > 2 ? "nodes" : "node");
}

/* A link that came up this moment carries packets before its interface counts as running. */
static dp_status_t await_link(dp_context_t *context, uint64_t deadline_ns, dp_error_t *error)
{
    const struct timespec pause = {0, LINK_LOOK_NS};
    const char *name = context->config.net_interface;
    int has_told = 0;

    while (!dp_interface_is_running(name)) {
        if (!has_told) dp_log_info(&context->log, "network: waiting for the link of %s", name);
        has_told = 1;
        if (dp_now_ns() >= deadline_ns) {
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "rank %d: the interface %s leads to the other nodes, but its link "
                                "is not up (ip link show %s)",
                                context->rank, name, name);
        }
        nanosleep(&pause, NULL);
    }
    return DP_OK;
}

/* Listens on these addresses, and on no other; all learn the ports. */
static dp_status_t open_and_tell(search_t *search, const char *name, const dp_reach_card_t *list,
                                 uint64_t deadline_ns, dp_error_t *error)
{
    const dp_reach_card_t none = {0};
    const dp_reach_card_t *card = &none;
    dp_status_t status = DP_OK;

    dp_reach_close(search->reach);
    search->reach = NULL;
    if (is_first(search)) {
        status = dp_reach_open(&search->context->bootstrap->secret, search->node, list,
                               &search->reach, error);
        if (status != DP_OK) return status;
        card = dp_reach_own_card(search->reach);
    }
    return exchange_cards(search, name, card, search->cards, deadline_ns, error);
}

static int are_some_left_out(const search_t *search)
{
    for (int node = 0; node < search->node_count; node++) {
        if (search->cards[node].count < search->lists[node].count) return 1;
    }
    return 0;
}

/* The addresses that the routes lead to serve no purpose, perhaps because the way back is another
 * one, or nobody waited for all of them: tries all addresses. */
static dp_status_t try_again(search_t *search, uint64_t deadline_ns, dp_error_t *error)
{
    dp_status_t status = DP_OK;

    if (are_some_left_out(search)) {
        status = open_and_tell(search, "all", &search->lists[search->node], deadline_ns, error);
    } else if (!dp_reach_is_open(search->cards, search->surveys, search->node_count)) {
        return explain(search, error);
    }
    if (status == DP_OK) status = try_once(search, 1, deadline_ns, error);
    if (status != DP_OK) return status;
    if (dp_reach_choose(search->cards, search->surveys, search->node_count, search->chosen) == 0)
        return DP_OK;
    return explain(search, error);
}

static dp_status_t find_by_trying(search_t *search, uint64_t deadline_ns, dp_error_t *error)
{
    dp_context_t *context = search->context;
    dp_reach_card_t own;
    dp_reach_card_t needed;
    dp_status_t status;

    dp_reach_list(context->config.net_interface, &own);
    status = exchange_cards(search, "addresses", &own, search->lists, deadline_ns, error);
    if (status != DP_OK) return status;
    dp_reach_list_needed(search->lists, search->node_count, search->node, dp_ip_source, &needed);
    status = open_and_tell(search, "network", &needed, deadline_ns, error);
    if (status == DP_OK) status = try_once(search, 0, deadline_ns, error);
    if (status != DP_OK) return status;
    if (dp_reach_choose(search->cards, search->surveys, search->node_count, search->chosen) > 0)
        status = try_again(search, deadline_ns, error);
    if (status != DP_OK) return status;
    adopt_chosen_network(search);
    return await_link(context, deadline_ns, error);
}

static void end_search(search_t *search)
{
    dp_reach_close(search->reach);
    for (int node = 0; search->surveys != NULL && node < search->node_count; node++)
        dp_reach_survey_free(&search->surveys[node]);
    free(search->lists);
    free(search->cards);
    free(search->surveys);
    free(search->chosen);
}

dp_status_t dp_context_find_network(dp_context_t *context, uint64_t deadline_ns, dp_error_t *error)
{
    const dp_topology_t *topology = &context->topology;
    const size_t count = (size_t)topology->node_count;
    char *name = context->config.net_interface;
    search_t search = {.context = context,
                       .node_count = topology->node_count,
                       .node = topology->node[context->rank]};
    dp_status_t status;

    if (name[0] != '\0' && !dp_interface_is(name)) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_NET_INTERFACE: rank %d (%s) has no network interface %s",
                            context->rank, topology->host_name[search.node], name);
    }
    if (context->is_one_network) {
        if (name[0] == '\0') dp_interface_loopback(name);
        return DP_OK;
    }
    search.lists = calloc(count, sizeof(*search.lists));
    search.cards = calloc(count, sizeof(*search.cards));
    search.surveys = calloc(count, sizeof(*search.surveys));
    search.chosen = calloc(count, sizeof(*search.chosen));
    if (search.lists == NULL || search.cards == NULL || search.surveys == NULL ||
        search.chosen == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for %zu nodes", count);
    } else {
        status = find_by_trying(&search, deadline_ns, error);
    }
    end_search(&search);
    return status;
}
