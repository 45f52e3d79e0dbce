/*
 * reach_choose.c - chooses which nodes try each other and which address of each node is used; says
 * why there is none.
 *
 * Pure arithmetic on cards and surveys, the same on every rank, so all ranks choose alike and fail
 * with one text. Called by dp_init() and by dprun.
 */
#include "runtime/network/reach.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LISTED_MAX 3 /* addresses in a text */

/* ---- Partners ------------------------------------------------------------------------------- */

static int compare_numbers(const void *left, const void *right)
{
    const int a = *(const int *)left;
    const int b = *(const int *)right;

    return (a > b) - (a < b);
}

/* Adds a node once. */
static void add_partner(int *partners, int *count, int node, int other, int node_count)
{
    if (other < 0 || other >= node_count || other == node) return;
    for (int i = 0; i < *count; i++) {
        if (partners[i] == other) return;
    }
    partners[(*count)++] = other;
}

int dp_reach_partners(int node, int node_count, int all, int arity, int *partners)
{
    int count = 0;

    if (node_count <= all) {
        for (int other = 0; other < node_count; other++)
            add_partner(partners, &count, node, other, node_count);
        return count;
    }
    for (int distance = 1; distance < node_count; distance *= 2) {
        add_partner(partners, &count, node, (node + distance) % node_count, node_count);
        add_partner(partners, &count, node, (node + node_count - distance) % node_count,
                    node_count);
    }
    if (node > 0) add_partner(partners, &count, node, (node - 1) / arity, node_count);
    for (int64_t i = 1; i <= arity && (int64_t)arity * node + i < node_count; i++)
        add_partner(partners, &count, node, arity * node + (int)i, node_count);
    qsort(partners, (size_t)count, sizeof(*partners), compare_numbers);
    return count;
}

/* ---- Choosing ------------------------------------------------------------------------------- */

static const dp_reach_try_t *find_try(const dp_reach_survey_t *survey, int node)
{
    int low = 0;
    int high = survey->count;

    while (low < high) {
        const int middle = (low + high) / 2;

        if (survey->tries[middle].node == node) return &survey->tries[middle];
        if (survey->tries[middle].node < node) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

/* ---- Addresses that are worth a try --------------------------------------------------------- */

static int has_address(const dp_reach_card_t *card, const dp_ip_t *ip)
{
    for (int i = 0; i < card->count; i++) {
        if (dp_ip_is_equal(&card->addresses[i].ip, ip)) return 1;
    }
    return 0;
}

void dp_reach_list_needed(const dp_reach_card_t *lists, int node_count, int node,
                          dp_reach_source_t source, dp_reach_card_t *needed)
{
    const dp_reach_card_t *own = &lists[node];
    int is_needed[DP_INTERFACE_ADDRESSES] = {0};
    int missing = own->count;

    for (int other = 0; other < node_count && missing > 0; other++) {
        for (int i = 0; i < lists[other].count && other != node; i++) {
            const dp_ip_t *to = &lists[other].addresses[i].ip;
            dp_ip_t from;

            if (has_address(own, to) || !source(to, &from)) continue;
            for (int k = 0; k < own->count; k++) {
                if (is_needed[k] || !dp_ip_is_equal(&own->addresses[k].ip, &from)) continue;
                is_needed[k] = 1;
                missing--;
            }
        }
    }
    memset(needed, 0, sizeof(*needed));
    for (int k = 0; k < own->count; k++) {
        if (is_needed[k]) needed->addresses[needed->count++] = own->addresses[k];
    }
}

/* The results of a node's partners for one of its addresses. */
typedef struct sight {
    int tried;   /* partners that tried */
    int reached; /* of these */
    int open;    /* of these: nobody waited for the answer */
    int direct;  /* of these that reached it: without a router between */
} sight_t;

/* 1: some address of the card is in the same network as this one, and not the same address. */
static int has_neighbour(const dp_reach_card_t *card, const dp_interface_address_t *address)
{
    for (int i = 0; i < card->count; i++) {
        const dp_interface_address_t *other = &card->addresses[i];

        if (other->prefix == address->prefix && !dp_ip_is_equal(&other->ip, &address->ip) &&
            dp_ip_is_near(&other->ip, &address->ip, address->prefix)) {
            return 1;
        }
    }
    return 0;
}

static sight_t look_at(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys,
                       int node_count, int node, int index)
{
    sight_t sight = {0, 0, 0, 0};

    for (int from = 0; from < node_count; from++) {
        const dp_reach_try_t *one = find_try(&surveys[from], node);

        if (one == NULL) continue;
        sight.tried++;
        sight.open += one->how[index] == DP_REACH_UNKNOWN;
        if (one->how[index] != DP_REACH_YES) continue;
        sight.reached++;
        sight.direct += has_neighbour(&cards[from], &cards[node].addresses[index]);
    }
    return sight;
}

/* Of this version of IP; -1: none that all partners reach. *direct: partners without a router. */
static int choose_address(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys,
                          int node_count, int node, int version, int *direct)
{
    const dp_reach_card_t *card = &cards[node];
    int best = -1;

    *direct = 0;
    for (int i = 0; i < card->count; i++) {
        sight_t sight;

        if (card->addresses[i].ip.version != version) continue;
        sight = look_at(cards, surveys, node_count, node, i);
        if (sight.tried == 0 || sight.reached < sight.tried) continue;
        if (best >= 0 &&
            (sight.direct < *direct || (sight.direct == *direct &&
                                        card->addresses[i].speed <= card->addresses[best].speed))) {
            continue;
        }
        best = i;
        *direct = sight.direct;
    }
    return best;
}

/* How well one version of IP serves all nodes. */
typedef struct service {
    int without; /* nodes that it does not serve */
    int direct;  /* paths without a router */
} service_t;

static service_t choose_version(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys,
                                int node_count, int version, int *chosen)
{
    service_t service = {0, 0};

    for (int node = 0; node < node_count; node++) {
        int direct;

        chosen[node] = choose_address(cards, surveys, node_count, node, version, &direct);
        service.without += chosen[node] < 0;
        service.direct += direct;
    }
    return service;
}

int dp_reach_choose(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys, int node_count,
                    int *chosen)
{
    const service_t six = choose_version(cards, surveys, node_count, 6, chosen);
    const service_t four = choose_version(cards, surveys, node_count, 4, chosen);
    const int is_six =
        six.without < four.without || (six.without == four.without && six.direct > four.direct);

    if (!is_six) return four.without;
    return choose_version(cards, surveys, node_count, 6, chosen).without;
}

/* Whether this version of IP serves the node, if all answers that nobody waited for are good. */
static int may_serve(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys, int node_count,
                     int node, int version)
{
    for (int i = 0; i < cards[node].count; i++) {
        sight_t sight;

        if (cards[node].addresses[i].ip.version != version) continue;
        sight = look_at(cards, surveys, node_count, node, i);
        if (sight.tried > 0 && sight.reached + sight.open == sight.tried) return 1;
    }
    return 0;
}

int dp_reach_is_open(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys, int node_count)
{
    for (int version = 4; version <= 6; version += 2) {
        int node = 0;

        while (node < node_count && may_serve(cards, surveys, node_count, node, version))
            node++;
        if (node == node_count) return 1;
    }
    return 0;
}

/* ---- Explaining ----------------------------------------------------------------------------- */

typedef struct text {
    char *at;
    size_t room;
    size_t bytes;
} text_t;

static void append(text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(text_t *text, const char *format, ...)
{
    va_list arguments;
    int wrote;

    if (text->bytes + 1 >= text->room) return;
    va_start(arguments, format);
    wrote = vsnprintf(text->at + text->bytes, text->room - text->bytes, format, arguments);
    va_end(arguments);
    if (wrote > 0) text->bytes = dp_min(text->bytes + (size_t)wrote, text->room - 1);
}

const char *dp_reach_words(uint8_t how)
{
    static const char *const words[DP_REACH_HOWS] = {
        [DP_REACH_UNKNOWN] = "not waited for",
        [DP_REACH_YES] = "answers",
        [DP_REACH_SILENT] = "no answer",
        [DP_REACH_REFUSED] = "refused",
        [DP_REACH_NO_ROUTE] = "no route, or a firewall says so",
        [DP_REACH_OTHER_NODE] = "another node answers there",
        [DP_REACH_STRANGER] = "a stranger answers there",
    };

    return how < DP_REACH_HOWS ? words[how] : "?";
}

int dp_reach_is_reached(const dp_reach_survey_t *survey, int node)
{
    const dp_reach_try_t *one = find_try(survey, node);

    return one != NULL && memchr(one->how, DP_REACH_YES, sizeof(one->how)) != NULL;
}

static int reaches_any(const dp_reach_survey_t *survey)
{
    for (int i = 0; i < survey->count; i++) {
        if (dp_reach_is_reached(survey, survey->tries[i].node)) return 1;
    }
    return 0;
}

static int is_reached_by_any(const dp_reach_survey_t *surveys, int node_count, int node)
{
    for (int from = 0; from < node_count; from++) {
        if (dp_reach_is_reached(&surveys[from], node)) return 1;
    }
    return 0;
}

/* The partner that finds the fewest addresses of a node; -1: the node has no partner. */
static int find_blindest(const dp_reach_survey_t *surveys, int node_count, int node)
{
    int blindest = -1;
    int fewest = DP_INTERFACE_ADDRESSES + 1;

    for (int from = 0; from < node_count; from++) {
        const dp_reach_try_t *one = find_try(&surveys[from], node);
        int found = 0;

        for (int i = 0; one != NULL && i < DP_INTERFACE_ADDRESSES; i++)
            found += one->how[i] == DP_REACH_YES;
        if (one == NULL || found >= fewest) continue;
        fewest = found;
        blindest = from;
    }
    return blindest;
}

/* The addresses on a node's card that another node, by this name and card, does not reach. */
static void list_tries(text_t *text, const dp_reach_card_t *card, const dp_reach_try_t *one,
                       const dp_reach_card_t *own, const char *name)
{
    char ip[DP_IP_TEXT];
    int listed = 0;

    for (int i = 0; i < card->count; i++) {
        if (one->how[i] == DP_REACH_YES) continue;
        if (listed++ >= LISTED_MAX) continue;
        append(text, "%s%s port %u (%s): ", listed > 1 ? "; " : "",
               dp_ip_format(&card->addresses[i].ip, ip), card->ports[i], card->addresses[i].name);
        if (has_address(own, &card->addresses[i].ip)) {
            append(text, "%s has this address, too", name);
        } else {
            append(text, "%s", dp_reach_words(one->how[i]));
        }
    }
    if (listed > LISTED_MAX) append(text, "; and %d more", listed - LISTED_MAX);
}

/* Which side of the connection from `from` to `node` stops it, as far as the other surveys tell. */
static void point_to_firewall(text_t *text, const dp_reach_survey_t *surveys, int node_count,
                              int from, int node, const char *const *names)
{
    const char *a = names[from];
    const char *b = names[node];
    const int is_back = dp_reach_is_reached(&surveys[node], from);

    if (dp_reach_is_reached(&surveys[from], node)) {
        append(text, ". Another node reaches %s only there: no address serves all", b);
    } else if (!is_back && !reaches_any(&surveys[node]) &&
               !is_reached_by_any(surveys, node_count, node)) {
        append(text, ". %s reaches nobody either: its network leads to no other node", b);
    } else if (is_reached_by_any(surveys, node_count, node)) {
        append(text,
               reaches_any(&surveys[from])
                   ? ". Other nodes reach %s: something between the two stops it"
                   : ". Other nodes reach %s, so a firewall on %s stops what goes out (TCP)",
               b, a);
    } else if (node_count == 2 || !reaches_any(&surveys[from])) {
        append(text,
               ". %s reaches %s: a firewall stops what comes in to %s, or goes out of %s (TCP)", b,
               is_back ? a : "others", b, a);
    } else {
        append(text,
               ". No node does, while %s reaches %s: a firewall on %s stops what comes in (TCP)", b,
               is_back ? a : "others", b);
    }
}

static int has_version(const dp_reach_card_t *card, int version)
{
    for (int i = 0; i < card->count; i++) {
        if (card->addresses[i].ip.version == version) return 1;
    }
    return 0;
}

/* Explains a node that all others reach, but by a version of IP by which some other node is not
 * reached. 1: it is one. */
static int explain_version(text_t *text, const dp_reach_card_t *cards,
                           const dp_reach_survey_t *surveys, int node_count, int node,
                           const char *const *names)
{
    for (int version = 4; version <= 6; version += 2) {
        int direct;
        const int here = choose_address(cards, surveys, node_count, node, version, &direct);
        char ip[DP_IP_TEXT];
        int other = 0;

        if (here < 0) continue;
        while (other < node_count - 1 &&
               choose_address(cards, surveys, node_count, other, version, &direct) >= 0)
            other++;
        append(text, "all reach %s at %s alone, and ", names[node],
               dp_ip_format(&cards[node].addresses[here].ip, ip));
        append(text,
               has_version(&cards[other], version) ? "not all reach %s by IPv%d"
                                                   : "%s has no address of IPv%d",
               names[other], version);
        append(text, "; one version of IP must lead to every node");
        return 1;
    }
    return 0;
}

void dp_reach_explain(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys,
                      int node_count, const int *chosen, const char *const *names, char *room_at,
                      size_t room)
{
    text_t text = {room_at, room, 0};
    int node = 0;
    int from;

    if (room > 0) room_at[0] = '\0';
    while (node < node_count && chosen[node] >= 0)
        node++;
    if (node == node_count) return;
    if (cards[node].count == 0) {
        append(&text, "%s has no network address but that of loopback", names[node]);
        return;
    }
    if (explain_version(&text, cards, surveys, node_count, node, names)) return;
    from = find_blindest(surveys, node_count, node);
    if (from < 0) return;
    append(&text, "%s does not reach %s at ", names[from], names[node]);
    list_tries(&text, &cards[node], find_try(&surveys[from], node), &cards[from], names[from]);
    point_to_firewall(&text, surveys, node_count, from, node, names);
    append(&text, "; DP_NET_INTERFACE can name an interface");
}
