/*
 * reach.h - finds by trying on which network interface the nodes of a job reach each other.
 *
 * Addresses alone do not tell: a bridge of containers has the same address on every machine, a
 * second network may lead nowhere, a firewall may let one direction pass. So one process of each
 * node (its first rank) listens on each address of the node for a
 * moment, and others connect to all of them:
 *
 *     list     the addresses; all nodes get all lists                  the caller's exchange
 *     needed   those from which this node's routes to the others start each node
 *     open     listen on these                                         each node
 *     card     the addresses and ports; all nodes get all cards        the caller's exchange
 *     try      connect to every address of the partners                each node
 *     survey   what was found; all nodes get all surveys               the caller's exchange
 *     choose   an address of each node that all its partners reach     each, the same everywhere
 *     close    nothing listens any more
 *
 * Both ends prove that they know the run's secret, and the one that was called says which node it
 * is. So an address that leads to another machine, or to a stranger, counts as not reached.
 *
 * A bridge of containers is where no route to another node starts, so nothing listens there. Where
 * the routes mislead, because the way back is another one, a second try listens on all addresses.
 *
 * Partners. Up to DP_REACH_ALL nodes, or DP_REACH_ALL_CHECK, every node tries every other one.
 * Beyond that it tries those at distances 1, 2, 4, ... in both directions and its neighbours in the
 * negotiation tree: firewalls, dead networks and addresses that are not what they seem belong to a
 * node, not to a pair of them, and show with any partner. A fault between two nodes that are no
 * partners shows later, when the engine connects them.
 */
#ifndef DP_NETWORK_REACH_H
#define DP_NETWORK_REACH_H

#include "runtime/base/auth.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/wire.h"
#include "runtime/network/interface.h"

#define DP_REACH_ALL 16       /* nodes of a job that each try every other one */
#define DP_REACH_ALL_CHECK 64 /* likewise by dprun --check */
#define DP_REACH_CARD_ROOM 1024

typedef struct dp_reach dp_reach_t;

typedef struct dp_reach_card {
    int count;
    dp_interface_address_t addresses[DP_INTERFACE_ADDRESSES];
    uint16_t ports[DP_INTERFACE_ADDRESSES];
} dp_reach_card_t;

/* How the try of one address of a partner ended. */
typedef enum dp_reach_how {
    DP_REACH_UNKNOWN,    /* there was no need to wait for it */
    DP_REACH_YES,        /* the right node answered */
    DP_REACH_SILENT,     /* nothing answered in time */
    DP_REACH_REFUSED,    /* its machine refused the connection */
    DP_REACH_NO_ROUTE,   /* no way there; or a firewall said so */
    DP_REACH_OTHER_NODE, /* another node of this job has that address */
    DP_REACH_STRANGER,   /* something that does not know the secret */
    DP_REACH_HOWS
} dp_reach_how_t;

/* A node's result for one partner. */
typedef struct dp_reach_try {
    int node;
    uint8_t how[DP_INTERFACE_ADDRESSES]; /* dp_reach_how_t, by the partner's card */
} dp_reach_try_t;

typedef struct dp_reach_survey {
    int count;
    dp_reach_try_t *tries; /* [count] by ascending node; owned */
} dp_reach_survey_t;

/* ---- Listening, and trying (reach.c, reach_try.c) ------------------------------------------- */

/* Lists the addresses of this node that may be used. Their ports are 0. only: the one interface;
 * "": all. */
void dp_reach_list(const char *only, dp_reach_card_t *list);

/* The addresses of `node` from which packets to addresses of other nodes start. An address that is
 * this node's too leads nowhere. source: dp_ip_source(), or a test's. */
typedef int (*dp_reach_source_t)(const dp_ip_t *to, dp_ip_t *from);
void dp_reach_list_needed(const dp_reach_card_t *lists, int node_count, int node,
                          dp_reach_source_t source, dp_reach_card_t *needed);

/**
 * Listens, and answers in a thread of its own until dp_reach_close(). A node without an address has
 * an empty card.
 *
 * @param secret of this run; copied
 * @param node   this node among the others
 * @param list   where to listen; copied
 * @return DP_OK
 *         DP_ERR_SYSTEM    no socket, no thread
 *         DP_ERR_NO_MEMORY
 */
dp_status_t dp_reach_open(const dp_secret_t *secret, int node, const dp_reach_card_t *list,
                          dp_reach_t **out, dp_error_t *error);
void dp_reach_close(dp_reach_t *reach); /* NULL is fine */

const dp_reach_card_t *dp_reach_own_card(const dp_reach_t *reach);

/**
 * Tries all addresses of this node's partners.
 *
 * @param cards       [node_count]
 * @param all         up to so many nodes each tries every other one
 * @param arity       of the negotiation tree
 * @param is_thorough 0: return soon after every partner was reached at one address; 1: wait until
 * it is known of every address
 * @param deadline_ns by dp_now_ns(): what is open then was not reached
 * @param survey      returned on DP_OK: dp_reach_survey_free()
 */
dp_status_t dp_reach_try(dp_reach_t *reach, const dp_reach_card_t *cards, int node_count, int all,
                         int arity, int is_thorough, uint64_t deadline_ns,
                         dp_reach_survey_t *survey, dp_error_t *error);
void dp_reach_survey_free(dp_reach_survey_t *survey);

/* ---- Pure parts (reach_choose.c, reach.c) --------------------------------------------------- */

/* Writes the partners of a node in ascending order into partners[node_count]; returns how many. Up
 * to `all` nodes they are all others. The relation is mutual. */
int dp_reach_partners(int node, int node_count, int all, int arity, int *partners);

/**
 * Chooses an address of each node: one that all its partners reach, the most direct one first (no
 * router between it and the others), then the fastest link, then the first of its card. All are of
 * one version of IP, as UCX connects no others: the one that serves more nodes, the more direct one
 * of two that serve all, version 4 of equals.
 *
 * @param cards   [node_count]
 * @param surveys [node_count]
 * @param chosen  [node_count] index into the node's card; -1: it has none
 * @return nodes without one
 */
int dp_reach_choose(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys, int node_count,
                    int *chosen);

/* Where dp_reach_choose() left nodes without one. 1: answers that nobody waited for could still
 * give every node an address. */
int dp_reach_is_open(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys,
                     int node_count);

/**
 * Why dp_reach_choose() found nothing, in a sentence for all ranks: who does not reach whom at
 * which address, port and interface, and which side's firewall that points to.
 *
 * @param names [node_count] for people: "a (rank 0)"
 */
void dp_reach_explain(const dp_reach_card_t *cards, const dp_reach_survey_t *surveys,
                      int node_count, const int *chosen, const char *const *names, char *text,
                      size_t room);

/* "no answer" */
const char *dp_reach_words(uint8_t how);

/* 1: `from` reaches `node` at some address, as far as its survey says. */
int dp_reach_is_reached(const dp_reach_survey_t *survey, int node);

/* Cards and surveys as bytes. A reader that fails has written nothing of use. */
size_t dp_reach_card_write(const dp_reach_card_t *card, uint8_t data[DP_REACH_CARD_ROOM]);
int dp_reach_card_read(const void *data, size_t bytes, dp_reach_card_t *card); /* 0: malformed */
size_t dp_reach_survey_bytes(const dp_reach_survey_t *survey);
size_t dp_reach_survey_write(const dp_reach_survey_t *survey, uint8_t *data, size_t room);
/* DP_ERR_SYSTEM: malformed; DP_ERR_NO_MEMORY. */
dp_status_t dp_reach_survey_read(const void *data, size_t bytes, int node_count,
                                 dp_reach_survey_t *survey);

#endif
