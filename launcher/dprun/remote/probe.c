/*
 * probe.c - see probe.h. Called by dprun.c in the process of a rank, which has one thread more
 * while it listens (reach.c).
 *
 * A first round tries the addresses that lead from one node to another. Where it has found no
 * network for all, a second one tries all addresses, and waits for every one of them.
 */
#include "launcher/dprun/remote/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/config.h"
#include "runtime/base/config_value.h"
#include "runtime/base/kv.h"
#include "runtime/network/reach.h"

#define SHARE_OF_TIME 3 /* a round takes this part of DP_START_TIMEOUT at most */
#define ARITY 8         /* beyond DP_REACH_ALL_CHECK nodes: which ones are partners */
#define LISTED_PAIRS 16
#define LISTED_NODES 64

typedef struct probe {
    dp_config_t config;
    dp_kv_ticket_t ticket;
    dp_kv_t *kv;
    uint64_t deadline_ns;
    int rank, size;
    dp_reach_t *reach;          /* while it listens */
    dp_reach_card_t *lists;     /* [size] the nodes' addresses */
    dp_reach_card_t *cards;     /* [size] those on which they listen */
    dp_reach_survey_t *surveys; /* [size] */
    int *chosen;                /* [size] */
    char **names;               /* [size] */
    void **values;              /* [size] of the latest exchange */
    size_t *bytes;              /* [size] */
} probe_t;

/* ---- Exchanges ------------------------------------------------------------------------------ */

static void free_values(probe_t *probe)
{
    for (int i = 0; i < probe->size; i++) {
        free(probe->values[i]);
        probe->values[i] = NULL;
    }
}

static dp_status_t exchange(probe_t *probe, const char *name, const void *value, size_t bytes,
                            dp_error_t *error)
{
    free_values(probe);
    return dp_kv_exchange(probe->kv, name, probe->size, value, bytes, probe->values, probe->bytes,
                          probe->deadline_ns, error);
}

static dp_status_t exchange_names(probe_t *probe, char *const *given, dp_error_t *error)
{
    char own[256] = "?";
    dp_status_t status;

    if (gethostname(own, sizeof(own) - 1) != 0) own[0] = '\0';
    for (int i = 0; given != NULL && given[i] != NULL && i <= probe->rank; i++)
        snprintf(own, sizeof(own), "%s", given[i]);
    status = exchange(probe, "names", own, strlen(own), error);
    for (int i = 0; status == DP_OK && i < probe->size; i++) {
        probe->names[i] = probe->values[i]; /* a NUL is behind its last byte */
        dp_text_mask(probe->names[i]);
        probe->values[i] = NULL;
    }
    return status;
}

static dp_status_t exchange_cards(probe_t *probe, const char *name, const dp_reach_card_t *own,
                                  dp_reach_card_t *cards, dp_error_t *error)
{
    uint8_t data[DP_REACH_CARD_ROOM];
    dp_status_t status = exchange(probe, name, data, dp_reach_card_write(own, data), error);

    for (int i = 0; status == DP_OK && i < probe->size; i++) {
        if (!dp_reach_card_read(probe->values[i], probe->bytes[i], &cards[i]))
            status = dp_error_set(error, DP_ERR_SYSTEM, "addresses of %s", probe->names[i]);
    }
    return status;
}

/* Listens there, and on nothing else; all learn the ports. */
static dp_status_t listen_at(probe_t *probe, const char *name, const dp_reach_card_t *list,
                             dp_error_t *error)
{
    dp_status_t status;

    dp_reach_close(probe->reach);
    probe->reach = NULL;
    status = dp_reach_open(&probe->ticket.secret, probe->rank, list, &probe->reach, error);
    if (status != DP_OK) return status;
    return exchange_cards(probe, name, dp_reach_own_card(probe->reach), probe->cards, error);
}

/* Tries the others; all learn what each has reached. */
static dp_status_t run_round(probe_t *probe, const char *name, int is_thorough, dp_error_t *error)
{
    const uint64_t limit_ns = probe->config.start_timeout_ns / SHARE_OF_TIME;
    dp_reach_survey_t own = {0, NULL};
    dp_status_t status = dp_reach_try(probe->reach, probe->cards, probe->size, DP_REACH_ALL_CHECK,
                                      ARITY, is_thorough, dp_now_ns() + limit_ns, &own, error);
    const size_t bytes = status == DP_OK ? dp_reach_survey_bytes(&own) : 0;
    uint8_t *data = malloc(bytes + 1);

    if (status == DP_OK && data == NULL)
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    if (status == DP_OK) {
        (void)dp_reach_survey_write(&own, data, bytes);
        status = exchange(probe, name, data, bytes, error);
    }
    free(data);
    dp_reach_survey_free(&own);
    for (int i = 0; status == DP_OK && i < probe->size; i++) {
        dp_reach_survey_free(&probe->surveys[i]);
        status = dp_reach_survey_read(probe->values[i], probe->bytes[i], probe->size,
                                      &probe->surveys[i]);
        if (status != DP_OK) dp_error_set(error, status, "paths of %s", probe->names[i]);
    }
    return status;
}

static int are_some_left_out(const probe_t *probe)
{
    for (int i = 0; i < probe->size; i++)
        if (probe->cards[i].count < probe->lists[i].count) return 1;
    return 0;
}

static int choose(const probe_t *probe)
{
    return dp_reach_choose(probe->cards, probe->surveys, probe->size, probe->chosen) == 0;
}

/* *found: an address of each node that all others reach. */
static dp_status_t find_network(probe_t *probe, int *found, dp_error_t *error)
{
    dp_reach_card_t list;
    dp_status_t status;
    int is_whole;

    dp_reach_list(probe->config.net_interface, &list);
    status = exchange_cards(probe, "addresses", &list, probe->lists, error);
    if (status != DP_OK) return status;
    dp_reach_list_needed(probe->lists, probe->size, probe->rank, dp_ip_source, &list);
    status = listen_at(probe, "network", &list, error);
    if (status == DP_OK) status = run_round(probe, "paths", 0, error);
    if (status != DP_OK) return status;
    *found = choose(probe);
    is_whole = are_some_left_out(probe);
    if (*found || (!is_whole && !dp_reach_is_open(probe->cards, probe->surveys, probe->size)))
        return DP_OK;
    if (is_whole) status = listen_at(probe, "all", &probe->lists[probe->rank], error);
    if (status == DP_OK) status = run_round(probe, "paths again", 1, error);
    if (status == DP_OK) *found = choose(probe);
    return status;
}

/* ---- Words ---------------------------------------------------------------------------------- */

/* Each address at which one node does not reach another; 0: it reaches it somewhere. */
static int print_pair(const probe_t *probe, int from, const dp_reach_try_t *one)
{
    const dp_reach_card_t *card = &probe->cards[one->node];

    if (dp_reach_is_reached(&probe->surveys[from], one->node)) return 0;
    printf("        %s -> %s:", probe->names[from], probe->names[one->node]);
    for (int i = 0; i < card->count; i++) {
        char ip[DP_IP_TEXT];

        printf("%s %s port %u (%s): %s", i > 0 ? ";" : "", dp_ip_format(&card->addresses[i].ip, ip),
               card->ports[i], card->addresses[i].name, dp_reach_words(one->how[i]));
    }
    printf("%s\n", card->count == 0 ? " it has no address" : "");
    return 1;
}

static void print_pairs(const probe_t *probe)
{
    int listed = 0;
    int more = 0;

    for (int from = 0; from < probe->size; from++) {
        const dp_reach_survey_t *survey = &probe->surveys[from];

        for (int i = 0; i < survey->count; i++) {
            if (listed < LISTED_PAIRS) {
                listed += print_pair(probe, from, &survey->tries[i]);
            } else {
                more += !dp_reach_is_reached(survey, survey->tries[i].node);
            }
        }
    }
    if (more > 0) printf("        and %d more\n", more);
}

static void print_fault(const probe_t *probe)
{
    const char *interface = probe->config.net_interface;
    char text[DP_ERROR_TEXT_MAX];

    printf("FAILED  network: there is none on which every node reaches every other\n");
    print_pairs(probe);
    for (int i = 0; i < probe->size && interface[0] != '\0'; i++) {
        if (probe->cards[i].count > 0) continue;
        printf("        -> %s has no address on the interface %s\n", probe->names[i], interface);
        return;
    }
    dp_reach_explain(probe->cards, probe->surveys, probe->size, probe->chosen,
                     (const char *const *)probe->names, text, sizeof(text));
    printf("        -> %s\n", text);
}

static void print_choice(const probe_t *probe)
{
    const int is_all = probe->size <= DP_REACH_ALL_CHECK;

    printf("ok      network: %s reaches %s, on", is_all ? "every node" : "each node",
           is_all ? "every other one" : "those that it was to try");
    for (int i = 0; i < dp_min(probe->size, LISTED_NODES); i++) {
        const dp_interface_address_t *at = &probe->cards[i].addresses[probe->chosen[i]];
        char ip[DP_IP_TEXT];

        printf("%s %s %s (%s)", i > 0 ? "," : "", probe->names[i], dp_ip_format(&at->ip, ip),
               at->name);
    }
    printf("%s\n", probe->size > LISTED_NODES ? ", ..." : "");
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int read_number(const char *name)
{
    const char *text = dp_environment(name);
    int64_t value = -1;

    return text == NULL || dp_parse_integer(text, &value) != NULL || value > INT32_MAX ? -1
                                                                                       : (int)value;
}

static dp_status_t open_probe(probe_t *probe, char *const *names, dp_error_t *error)
{
    const int ticket_fd = read_number("DP_BOOTSTRAP_FD");
    size_t count;
    dp_status_t status;
    dp_log_t log;

    probe->rank = read_number("DP_RANK");
    probe->size = read_number("DP_SIZE");
    if (ticket_fd < 0 || probe->size < 1 || probe->rank < 0 || probe->rank >= probe->size) {
        (void)dp_error_set(error, DP_ERR_CONFIG,
                           "dprun --probe is started by dprun --check itself");
        return DP_ERR_CONFIG;
    }
    count = (size_t)probe->size;
    dp_log_init(&log, DP_LOG_WARN, probe->rank);
    dp_config_defaults(&probe->config);
    status = dp_config_from_environment(&probe->config, &log, error);
    if (status == DP_OK) status = dp_kv_ticket_read(ticket_fd, &probe->ticket, error);
    if (status != DP_OK) return status;
    probe->lists = calloc(count, sizeof(*probe->lists));
    probe->cards = calloc(count, sizeof(*probe->cards));
    probe->surveys = calloc(count, sizeof(*probe->surveys));
    probe->chosen = calloc(count, sizeof(*probe->chosen));
    probe->names = calloc(count, sizeof(*probe->names));
    probe->values = calloc(count, sizeof(*probe->values));
    probe->bytes = calloc(count, sizeof(*probe->bytes));
    if (probe->lists == NULL || probe->cards == NULL || probe->surveys == NULL ||
        probe->chosen == NULL || probe->names == NULL || probe->values == NULL ||
        probe->bytes == NULL) {
        (void)dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
        return DP_ERR_NO_MEMORY;
    }
    probe->deadline_ns = dp_now_ns() + probe->config.start_timeout_ns;
    status = dp_kv_connect(&probe->ticket, probe->rank, probe->deadline_ns, &probe->kv, error);
    return status == DP_OK ? exchange_names(probe, names, error) : status;
}

static void close_probe(probe_t *probe)
{
    dp_reach_close(probe->reach);
    if (probe->kv != NULL) free_values(probe); /* before there was one, none came */
    dp_kv_close(probe->kv);
    for (int i = 0; i < probe->size; i++) {
        if (probe->names != NULL) free(probe->names[i]);
        if (probe->surveys != NULL) dp_reach_survey_free(&probe->surveys[i]);
    }
    free(probe->lists);
    free(probe->cards);
    free(probe->surveys);
    free(probe->chosen);
    free(probe->names);
    free(probe->values);
    free(probe->bytes);
    explicit_bzero(&probe->ticket, sizeof(probe->ticket));
}

int dp_probe_run(char *const *names)
{
    probe_t probe = {.rank = -1};
    dp_error_t error = {DP_OK, ""};
    dp_status_t status = open_probe(&probe, names, &error);
    int found = 1;

    if (status == DP_OK && probe.size > 1) status = find_network(&probe, &found, &error);
    if (status != DP_OK) {
        fprintf(probe.rank == 0 ? stdout : stderr, "FAILED  network: %s\n", error.text);
    } else if (probe.rank == 0 && probe.size > 1) {
        if (found) {
            print_choice(&probe);
        } else {
            print_fault(&probe);
        }
    }
    close_probe(&probe);
    return status != DP_OK || (probe.rank == 0 && !found) ? 1 : 0;
}
