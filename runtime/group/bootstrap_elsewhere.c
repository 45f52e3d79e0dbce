/*
 * bootstrap_elsewhere.c - the bootstrap of a rank that torchrun, mpirun, srun or a script started.
 *
 * Called by dp_init(), in the program's thread. Rank 0 serves the rendezvous in a thread of its own
 * (bootstrap_server.c). The others learn its address and the secret in one of four ways:
 *
 *     PMI         from the launcher's key-value space
 *     a store     from the key-value store of the program
 *     one node    from a file of this user (beacon.h); rank 0 serves a local socket then
 *     otherwise   address from DP_RENDEZVOUS or MASTER_ADDR, secret from DP_SECRET_FILE
 *
 * Then all ranks meet in a first exchange, which proves that they are of the same job and takes the
 * job's name from a random number of rank 0. Every wait ends at DP_START_TIMEOUT, or when the time
 * is over that the program gives its ranks to come to its store.
 */
#include "runtime/group/bootstrap_internal.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/config_value.h"
#include "runtime/base/kv.h"
#include "runtime/base/rendezvous.h"
#include "runtime/base/wire.h"
#include "runtime/group/bootstrap_keys.h"
#include "runtime/group/bootstrap_place.h"
#include "runtime/group/bootstrap_server.h"
#include "runtime/network/interface.h"
#include "runtime/group/node_identity.h"
#include "runtime/group/pmi.h"
#include "runtime/network/resolve.h"
#include "runtime/base/auth.h"

#define RETRY_NS 20000000L       /* between two looks for rank 0 */
#define ATTEMPT_NS 3000000000ull /* for one address to answer, of several or again and again */
#define PMI_KEY "dp-rendezvous"
#define NONCE_BYTES 32

typedef struct elsewhere {
    dp_bootstrap_t base; /* first: ops receive its address */
    dp_starter_t starter;
    const dp_bootstrap_store_t *store; /* of the kind STORE; while ranks meet */
    dp_bootstrap_keys_t keys;          /* likewise */
    dp_log_t log;
    const char *interface; /* DP_NET_INTERFACE, while ranks meet; "": any */
    dp_kv_t *kv;
    dp_bootstrap_server_t *server; /* rank 0 */
    dp_beacon_t beacon;            /* where rank 0 is; its secret is wiped when all have met */
    uint64_t deadline_ns;
    uint64_t timeout_ns;
    atomic_int ticket_fd; /* of dprun, whose job has the ranks of this world; -1: none, or used */
} elsewhere_t;

/* Puts in front of an error which rank of whose job this is. */
static dp_status_t add_starter_facts(const elsewhere_t *self, dp_error_t *error,
                                     const dp_error_t *cause)
{
    return dp_error_set(error, cause->status, "rank %d of %d (%s): %s", self->base.rank,
                        self->base.size, self->starter.name, cause->text);
}

/* The client's own texts begin with "rendezvous ADDRESS": adds that it is rank 0's. */
static void name_server(dp_error_t *error)
{
    if (strncmp(error->text, "rendezvous ", 11) == 0) {
        dp_error_set(error, error->status, "rank 0's %s", error->text);
    }
}

static void pause_before_retry(void)
{
    const struct timespec pause = {0, RETRY_NS};

    nanosleep(&pause, NULL);
}

/* ---- Rank 0 serves -------------------------------------------------------------------------- */

static void add_address(dp_beacon_t *beacon, const char *text)
{
    if (beacon->address_count == DP_BEACON_ADDRESSES) return;
    for (int i = 0; i < beacon->address_count; i++)
        if (strcmp(beacon->addresses[i], text) == 0) return;
    snprintf(beacon->addresses[beacon->address_count++], sizeof(beacon->addresses[0]), "%.*s",
             (int)sizeof(beacon->addresses[0]) - 1, text);
}

/* Starts the server at these listeners, which are taken. */
static dp_status_t start_server(elsewhere_t *self, const int *listeners, int count,
                                dp_error_t *error)
{
    dp_process_self(&self->beacon.server);
    return dp_bootstrap_server_start(listeners, count, self->base.size, &self->beacon.secret,
                                     &self->log, &self->server, error);
}

/* All ranks are on this machine: no port, and the beacon is complete. */
static dp_status_t serve_here(elsewhere_t *self, dp_error_t *error)
{
    char name[DP_LOCAL_ADDRESS_ROOM];
    int listener;
    dp_status_t status = dp_local_listen(name, &listener, error);

    if (status != DP_OK) return status;
    self->beacon.port = 0;
    add_address(&self->beacon, name);
    return start_server(self, &listener, 1, error);
}

/* Listens on a port of these addresses, starts the server and fills in the beacon but for its
 * addresses. */
static dp_status_t serve_port(elsewhere_t *self, const dp_bootstrap_place_t *place, int port,
                              dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};
    int listeners[DP_BOOTSTRAP_PLACE_MAX];
    int count = 0;
    char where[256];
    dp_status_t status = dp_bootstrap_place_listen(place, (uint16_t)port, listeners, &count,
                                                   &self->beacon.port, &cause);

    if (status != DP_OK && port > 0) {
        return dp_error_set(
            error, status, "%s; choose another port for the rendezvous with %s (it is %s)",
            cause.text, self->starter.is_port_asked ? "DP_RENDEZVOUS" : "DP_RENDEZVOUS_PORT",
            self->starter.is_port_asked ? "what was asked for" : "MASTER_PORT + 1");
    }
    if (status != DP_OK) return dp_error_set(error, status, "%s", cause.text);
    dp_bootstrap_place_format(place, self->beacon.port, where, sizeof(where));
    dp_log_info(&self->log, "rendezvous: listens %s%s%s %s", where, place->count == 0 ? ": " : "",
                place->count == 0 ? place->name : "", place->why);
    return start_server(self, listeners, count, error);
}

/* Every address of this machine that another one might reach, of those it listens on. */
static void add_own_addresses(dp_beacon_t *beacon, const dp_bootstrap_place_t *place)
{
    dp_interface_address_t own[DP_BEACON_ADDRESSES];
    const int count = dp_interface_list(own, DP_BEACON_ADDRESSES, "");
    char text[DP_IP_TEXT];

    for (int i = 0; i < place->count; i++)
        add_address(beacon, dp_ip_format(&place->ips[i], text));
    for (int i = 0; i < count && place->count == 0; i++)
        add_address(beacon, dp_ip_format(&own[i].ip, text));
    add_address(beacon, "127.0.0.1");
}

/* ---- The others come ------------------------------------------------------------------------ */

/* Tries each address once. DP_ERR_CONFIG: a rendezvous with another secret. */
static dp_status_t connect_once(elsewhere_t *self, dp_error_t *error)
{
    dp_status_t status = DP_ERR_SYSTEM;

    for (int i = 0; i < self->beacon.address_count; i++) {
        const uint64_t attempt_ns = dp_now_ns() + ATTEMPT_NS;
        dp_kv_ticket_t ticket = {.port = self->beacon.port, .secret = self->beacon.secret};

        snprintf(ticket.address, sizeof(ticket.address), "%s", self->beacon.addresses[i]);
        status = dp_kv_connect(&ticket, self->base.rank, dp_min(attempt_ns, self->deadline_ns),
                               &self->kv, error);
        explicit_bzero(&ticket, sizeof(ticket));
        if (status == DP_OK) return DP_OK;
        name_server(error);
    }
    return status;
}

/* With the secret that came with the address: a refusal is another server in the place of one that
 * ended, or at one of several addresses, and no reason to give up. */
static dp_status_t connect_trusted(elsewhere_t *self, dp_error_t *error)
{
    dp_status_t status = connect_once(self, error);

    return status == DP_ERR_CONFIG ? DP_ERR_SYSTEM : status;
}

/* One look for rank 0. DP_ERR_CONFIG, DP_ERR_MISMATCH and DP_ERR_NO_MEMORY end the search. */
typedef dp_status_t (*find_fn)(elsewhere_t *self, const char *path, dp_error_t *error);

static dp_status_t find_by_file(elsewhere_t *self, const char *path, dp_error_t *error)
{
    dp_status_t status = dp_beacon_look(path, self->starter.identity, &self->beacon, error);

    return status == DP_OK ? connect_trusted(self, error) : status;
}

static dp_status_t find_by_address(elsewhere_t *self, const char *path, dp_error_t *error)
{
    char found[DP_BEACON_ADDRESSES][DP_RESOLVE_ROOM];
    int count = 0;
    dp_status_t status = dp_resolve(self->starter.host, found, DP_BEACON_ADDRESSES, &count,
                                    self->deadline_ns, error);

    (void)path;
    if (status != DP_OK) return status;
    self->beacon.address_count = 0;
    for (int i = 0; i < count; i++)
        add_address(&self->beacon, found[i]);
    self->beacon.port = (uint16_t)self->starter.port;
    return connect_once(self, error);
}

static dp_status_t find_by_beacon(elsewhere_t *self, const char *path, dp_error_t *error)
{
    (void)path; /* the addresses are known */
    return connect_trusted(self, error);
}

static dp_status_t search(elsewhere_t *self, find_fn find, const char *path, dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};
    char limit[32];
    dp_status_t status;

    for (;;) {
        status = find(self, path, &cause);
        if (status == DP_OK) return DP_OK;
        if (status == DP_ERR_CONFIG || status == DP_ERR_MISMATCH || status == DP_ERR_NO_MEMORY) {
            return dp_error_set(error, status, "%s", cause.text);
        }
        if (dp_now_ns() >= self->deadline_ns) break;
        pause_before_retry();
    }
    dp_format_time((int64_t)self->timeout_ns, limit, sizeof(limit));
    return dp_error_set(error, DP_ERR_TIMEOUT,
                        "rank 0 did not come within DP_START_TIMEOUT=%s: %.200s; if nobody starts "
                        "rank 0, unset %s and %s for a world of one",
                        limit, cause.text, self->starter.rank_name, self->starter.size_name);
}

/* ---- Four ways ------------------------------------------------------------------------------ */

/* A name of this machine by which the others reach it, if there is any: Slurm has one for each
 * node. A program with a store has often met before at MASTER_ADDR, which leads to rank 0 then, or
 * to another machine and is of no use. */
static const char *own_name(const elsewhere_t *self)
{
    const char *name = dp_environment(self->store != NULL ? "MASTER_ADDR" : "SLURMD_NODENAME");

    return name == NULL ? "" : name;
}

/* Rank 0: serves, and says in `text` where, for a key-value space that the job alone can read. */
static dp_status_t serve_by_text(elsewhere_t *self, char *text, size_t room, dp_error_t *error)
{
    dp_bootstrap_place_t place;
    dp_status_t status;

    dp_random(self->beacon.secret.bytes, DP_SECRET_BYTES);
    if (self->starter.is_one_node) {
        status = serve_here(self, error);
    } else {
        dp_bootstrap_place_find_own(own_name(self), self->interface, &place);
        status = serve_port(self, &place, 0, error);
        add_own_addresses(&self->beacon, &place);
    }
    dp_beacon_to_text(&self->beacon, text, room);
    return status;
}

/* On the machine of rank 0 the loopback interface goes before its other addresses. */
static void prefer_loopback(elsewhere_t *self)
{
    dp_process_t own;

    dp_process_self(&own);
    if (self->beacon.port == 0) return;
    if (self->base.rank != 0 && strcmp(own.boot, self->beacon.server.boot) != 0) return;
    memmove(self->beacon.addresses[1], self->beacon.addresses[0],
            (DP_BEACON_ADDRESSES - 1) * sizeof(self->beacon.addresses[0]));
    snprintf(self->beacon.addresses[0], sizeof(self->beacon.addresses[0]), "127.0.0.1");
    self->beacon.address_count = dp_min(self->beacon.address_count + 1, DP_BEACON_ADDRESSES);
}

static dp_status_t meet_by_pmi(elsewhere_t *self, dp_error_t *error)
{
    char text[2 * DP_BEACON_MAX + 1] = "";
    const char *job = self->starter.pmi_job[0] != '\0' ? self->starter.pmi_job : NULL;
    dp_pmi_t *pmi = malloc(sizeof(*pmi));
    dp_status_t status;

    if (pmi == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for PMI");
    status = dp_pmi_open(pmi, self->starter.pmi_fd, job, self->base.rank, self->base.size,
                         self->deadline_ns, error);
    if (status == DP_OK && self->base.rank == 0) {
        status = serve_by_text(self, text, sizeof(text), error);
        if (status == DP_OK) status = dp_pmi_put(pmi, PMI_KEY, text, error);
    }
    if (status == DP_OK) status = dp_pmi_fence(pmi, error);
    if (status == DP_OK && self->base.rank != 0) {
        status = dp_pmi_get(pmi, PMI_KEY, text, sizeof(text), error);
        if (status == DP_OK) status = dp_beacon_from_text(text, &self->beacon, error);
    }
    if (status == DP_OK) status = dp_pmi_close(pmi, error);
    explicit_bzero(text, sizeof(text));
    free(pmi);
    if (status != DP_OK) return status;
    prefer_loopback(self);
    return search(self, find_by_beacon, NULL, error);
}

static dp_status_t lead_by_store(elsewhere_t *self, dp_error_t *error)
{
    char text[2 * DP_BEACON_MAX + 1] = "";
    dp_status_t status = dp_bootstrap_keys_lead(&self->keys, &self->starter.is_one_node, error);

    if (status == DP_OK) status = serve_by_text(self, text, sizeof(text), error);
    if (status == DP_OK) status = dp_bootstrap_keys_put_address(&self->keys, text, error);
    explicit_bzero(text, sizeof(text));
    if (status != DP_OK) return status;
    prefer_loopback(self);
    return search(self, find_by_beacon, NULL, error);
}

/* One look. DP_ERR_TIMEOUT: no rank 0 was met; cause may say more. */
static dp_status_t follow_once(elsewhere_t *self, dp_error_t *cause, dp_error_t *error)
{
    char text[2 * DP_BEACON_MAX + 1] = "";
    dp_status_t status = dp_bootstrap_keys_find_address(&self->keys, text, sizeof(text), error);

    if (status != DP_OK) return status;
    self->beacon.address_count = 0;
    status = dp_beacon_from_text(text, &self->beacon, error);
    explicit_bzero(text, sizeof(text));
    if (status != DP_OK) return status;
    prefer_loopback(self);
    status = connect_trusted(self, cause);
    if (status == DP_OK) return DP_OK;
    if (status != DP_ERR_MISMATCH && status != DP_ERR_NO_MEMORY) return DP_ERR_TIMEOUT;
    return dp_error_set(error, status, "%s", cause->text);
}

static dp_status_t meet_by_store(elsewhere_t *self, dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};

    if (self->base.rank == 0) return lead_by_store(self, error);
    for (;;) {
        const dp_status_t status = follow_once(self, &cause, error);

        if (status != DP_ERR_TIMEOUT) return status;
        if (dp_now_ns() + RETRY_NS >= self->deadline_ns)
            return dp_bootstrap_keys_name_late(&self->keys, 0, cause.text, error);
        pause_before_retry();
    }
}

static dp_status_t meet_by_file(elsewhere_t *self, dp_error_t *error)
{
    char path[DP_BEACON_PATH_MAX];
    dp_status_t status;

    dp_beacon_path(self->starter.identity, path);
    if (self->base.rank != 0) return search(self, find_by_file, path, error);
    dp_random(self->beacon.secret.bytes, DP_SECRET_BYTES);
    snprintf(self->beacon.identity, sizeof(self->beacon.identity), "%s", self->starter.identity);
    status = serve_here(self, error);
    if (status == DP_OK) {
        status = dp_beacon_publish(path, &self->beacon, self->deadline_ns, error);
    }
    if (status != DP_OK) return status;
    dp_bootstrap_server_guard(self->server, path);
    return connect_once(self, error);
}

static dp_status_t meet_by_address(elsewhere_t *self, const char *secret_file, dp_error_t *error)
{
    dp_status_t status =
        dp_secret_file_read(secret_file, "secret file", &self->beacon.secret, error);
    dp_bootstrap_place_t place;
    char text[DP_IP_TEXT];

    if (status != DP_OK || self->base.rank != 0) {
        return status == DP_OK ? search(self, find_by_address, NULL, error) : status;
    }
    dp_bootstrap_place_find(self->starter.host, self->interface, &place);
    status = serve_port(self, &place, self->starter.port, error);
    for (int i = 0; i < place.count; i++)
        add_address(&self->beacon, dp_ip_format(&place.ips[i], text));
    if (place.count == 0) add_address(&self->beacon, "127.0.0.1");
    /* A flood may drop this rank's own connection too: it comes again, as the others do. */
    return status == DP_OK ? search(self, find_by_beacon, NULL, error) : status;
}

/* Says what is missing of address and secret, and how to get that alone. */
static dp_status_t refuse_several_machines(const dp_starter_t *starter, int has_secret,
                                           dp_error_t *error)
{
    const int has_address = starter->host[0] != '\0';
    const char *address = "";
    const char *secret = "";

    if (!has_address && starter->kind == DP_STARTER_SLURM) {
        address = ": of the machine of rank 0 and a port that is free there, the same on all ranks,"
                  " e.g. $(scontrol show hostnames | head -1):29510 (srun --mpi=pmi2 needs none)";
    } else if (!has_address) {
        address = ": of the machine of rank 0, as the others reach it, and a port that is free "
                  "there, the same on all ranks";
    }
    if (!has_secret) {
        secret = has_address ? ": the same on each of them, e.g. from: (umask 077; head -c 32 "
                               "/dev/urandom > FILE), copied by ssh"
                             : "; the secret is the same on each of them, e.g. from: (umask 077; "
                               "head -c 32 /dev/urandom > FILE), copied by ssh";
    }
    return dp_error_set(error, DP_ERR_CONFIG, "several machines need %s%s%s%s%s%s",
                        has_address ? "" : "an address (DP_RENDEZVOUS=HOST:PORT)",
                        has_address || has_secret ? "" : " and ",
                        has_secret ? "" : "a secret (DP_SECRET_FILE)", address, secret,
                        starter->local_size < 0 ? "; if it is one machine, say so with the local "
                                                  "rank and size"
                                                : "");
}

static dp_status_t find_rank_0(elsewhere_t *self, const dp_config_t *config, dp_error_t *error)
{
    const dp_starter_t *starter = &self->starter;

    if (self->store != NULL) return meet_by_store(self, error);
    if (starter->kind == DP_STARTER_PMI) return meet_by_pmi(self, error);
    if (starter->is_one_node) return meet_by_file(self, error);
    if (config->secret_file[0] != '\0' && starter->host[0] != '\0') {
        return meet_by_address(self, config->secret_file, error);
    }
    return refuse_several_machines(starter, config->secret_file[0] != '\0', error);
}

/* ---- All meet ------------------------------------------------------------------------------- */

/* Writes a rank's first message: the job it belongs to; rank 0 a random number too. */
static size_t write_card(const elsewhere_t *self, const uint8_t *nonce, uint8_t *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_text(&writer, self->starter.identity);
    dp_write_bytes(&writer, nonce, NONCE_BYTES);
    return writer.failed ? 0 : writer.bytes;
}

static dp_status_t compare_cards(elsewhere_t *self, void **values, const size_t *bytes,
                                 uint8_t nonce[NONCE_BYTES], dp_error_t *error)
{
    char identity[DP_IDENTITY_MAX];
    dp_reader_t reader;

    for (int rank = 0; rank < self->base.size; rank++) {
        const void *random;

        dp_reader_init(&reader, values[rank], bytes[rank]);
        dp_read_text(&reader, identity, sizeof(identity));
        random = dp_read_bytes(&reader, NONCE_BYTES);
        if (reader.failed || dp_reader_left(&reader) != 0) {
            return dp_error_set(error, DP_ERR_SYSTEM, "rank %d says nothing that makes sense",
                                rank);
        }
        if (rank == 0) memcpy(nonce, random, NONCE_BYTES);
        if (strcmp(identity, self->starter.identity) != 0) {
            return dp_error_set(error, DP_ERR_MISMATCH,
                                "rank %d belongs to job '%.150s', rank %d to '%.150s': variables "
                                "of another run?",
                                rank, identity, self->base.rank, self->starter.identity);
        }
    }
    return DP_OK;
}

static dp_status_t wrap_exchange(elsewhere_t *self, dp_status_t status, const dp_error_t *cause,
                                 dp_error_t *error)
{
    dp_error_t worded = *cause;

    if (status == DP_OK) return DP_OK;
    name_server(&worded);
    if (status == DP_ERR_SYSTEM && self->base.rank != 0) {
        dp_error_set(&worded, DP_ERR_PEER_LOST,
                     "rank 0, which serves the rendezvous, has ended: %s", cause->text);
    }
    return add_starter_facts(self, error, &worded);
}

static dp_status_t elsewhere_exchange(dp_bootstrap_t *base, const char *name, const void *value,
                                      size_t value_bytes, void **values, size_t *bytes,
                                      uint64_t deadline_ns, dp_error_t *error)
{
    elsewhere_t *self = (elsewhere_t *)base;
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status = dp_kv_exchange(self->kv, name, base->size, value, value_bytes, values,
                                        bytes, deadline_ns, &cause);

    return wrap_exchange(self, status, &cause, error);
}

/* The job's name and the tag of its control frames are new in every run, whatever the secret. */
static dp_status_t meet_all(elsewhere_t *self, dp_error_t *error)
{
    uint8_t card[DP_IDENTITY_MAX + NONCE_BYTES + 2];
    uint8_t nonce[NONCE_BYTES];
    void **values = calloc((size_t)self->base.size, sizeof(*values));
    size_t *bytes = calloc((size_t)self->base.size, sizeof(*bytes));
    dp_error_t cause = {DP_OK, ""};
    dp_secret_t run;
    dp_status_t status = DP_ERR_NO_MEMORY;

    dp_random(nonce, sizeof(nonce));
    if (values == NULL || bytes == NULL) {
        dp_error_set(error, status, "no memory for %d ranks", self->base.size);
    } else {
        status = elsewhere_exchange(&self->base, "job", card,
                                    write_card(self, nonce, card, sizeof(card)), values, bytes,
                                    self->deadline_ns, error);
        if (status == DP_OK) {
            status = compare_cards(self, values, bytes, nonce, &cause);
            if (status != DP_OK) add_starter_facts(self, error, &cause);
        }
        dp_bootstrap_free_values(values, self->base.size);
    }
    free(values);
    free(bytes);
    if (status != DP_OK) return status;
    dp_auth_derive(&self->beacon.secret, "run", nonce, sizeof(nonce), &run);
    self->base.tag = dp_auth_tag(&run, "control");
    dp_auth_derive(&run, "lines", "", 0, &self->base.secret);
    snprintf(self->base.job, sizeof(self->base.job), "%016" PRIx64, dp_auth_tag(&run, "job"));
    explicit_bzero(&run, sizeof(run));
    return DP_OK;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void elsewhere_report(dp_bootstrap_t *base, const dp_failure_t *failure)
{
    elsewhere_t *self = (elsewhere_t *)base;
    const int ticket_fd = atomic_exchange(&self->ticket_fd, -1);

    if (ticket_fd >= 0) dp_bootstrap_report_to_dprun(ticket_fd, base->rank, failure);
}

static void elsewhere_destroy(dp_bootstrap_t *base)
{
    elsewhere_t *self = (elsewhere_t *)base;

    dp_kv_close(self->kv);
    dp_bootstrap_server_stop(self->server);
    dp_log_queue_destroy(self->log.queue);
    explicit_bzero(&self->beacon, sizeof(self->beacon));
    free(self);
}

static const dp_bootstrap_ops_t elsewhere_ops = {"elsewhere", elsewhere_exchange, elsewhere_report,
                                                 NULL, elsewhere_destroy};

dp_status_t dp_bootstrap_create_elsewhere(const dp_config_t *config, const dp_starter_t *starter,
                                          const dp_bootstrap_store_t *store, dp_bootstrap_t **out,
                                          dp_error_t *error)
{
    elsewhere_t *self = calloc(1, sizeof(*self));
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status;

    if (self == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    self->base.ops = &elsewhere_ops;
    self->base.rank = starter->rank;
    self->base.size = starter->size;
    self->base.local_rank = starter->local_rank;
    self->base.local_size = starter->local_size;
    self->starter = *starter;
    self->store = store;
    self->interface = config->net_interface;
    /* A program under dprun may number its ranks otherwise, or make a world of some of them. */
    atomic_init(&self->ticket_fd,
                config->rank == starter->rank && config->world_size == starter->size
                    ? config->bootstrap_fd
                    : -1);
    self->timeout_ns = config->start_timeout_ns;
    if (store != NULL)
        self->timeout_ns = dp_bootstrap_keys_init(&self->keys, store, config->start_timeout_ns);
    self->deadline_ns = dp_now_ns() + self->timeout_ns;
    /* Ranks that a program leads to a store may come minutes apart. The rest begins when all have.
     */
    self->base.deadline_ns = store != NULL ? 0 : self->deadline_ns;
    dp_log_init(&self->log, (dp_log_level_t)config->log_level, starter->rank);
    self->log.queue = dp_log_queue_create();
    if (starter->warning[0] != '\0') dp_log_warn(&self->log, "%s", starter->warning);
    status = find_rank_0(self, config, &cause);
    if (status != DP_OK) {
        add_starter_facts(self, error, &cause);
    } else {
        status = meet_all(self, error);
    }
    if (status == DP_OK && store != NULL) dp_bootstrap_keys_leave(&self->keys);
    if (status != DP_OK) {
        elsewhere_destroy(&self->base);
        return status;
    }
    explicit_bzero(&self->beacon.secret, sizeof(self->beacon.secret)); /* it has done its work */
    self->store = NULL;                                                /* the caller's, likewise */
    self->interface = NULL;
    *out = &self->base;
    return DP_OK;
}
