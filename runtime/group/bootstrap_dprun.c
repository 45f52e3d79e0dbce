/*
 * bootstrap_dprun.c - the bootstrap of a rank that dprun started: an exchange is one of dprun's
 * rendezvous (kv.h). Called by dp_init(), and report() by any thread. A rank of dprun whose world
 * meets elsewhere comes to that rendezvous only to report why the world ended.
 */
#include "runtime/group/bootstrap_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "runtime/base/kv.h"

#define RETRY_NS 10000000L
#define LATE_REPORT_NS 1000000000ull /* for dprun to let in a rank that comes to report */

typedef struct dprun {
    dp_bootstrap_t base; /* first: ops receive its address */
    dp_kv_t *kv;
} dprun_t;

static dp_status_t dprun_exchange(dp_bootstrap_t *self, const char *name, const void *value,
                                  size_t value_bytes, void **values, size_t *bytes,
                                  uint64_t deadline_ns, dp_error_t *error)
{
    return dp_kv_exchange(((dprun_t *)self)->kv, name, self->size, value, value_bytes, values,
                          bytes, deadline_ns, error);
}

static void dprun_report(dp_bootstrap_t *self, const dp_failure_t *failure)
{
    dp_kv_report(((dprun_t *)self)->kv, failure);
}

/* dprun keeps its door open until all ranks have come, and here none has. */
void dp_bootstrap_report_to_dprun(int ticket_fd, int rank, const dp_failure_t *failure)
{
    struct stat about;
    dp_kv_ticket_t ticket;
    dp_kv_t *kv = NULL;

    /* dprun's is a memory file. Another dp_init() may have used it, and the number be a pipe's. */
    if (fstat(ticket_fd, &about) != 0 || !S_ISREG(about.st_mode)) return;
    if (dp_kv_ticket_read(ticket_fd, &ticket, NULL) != DP_OK) return;
    (void)dp_kv_connect(&ticket, rank, dp_now_ns() + LATE_REPORT_NS, &kv, NULL);
    explicit_bzero(&ticket, sizeof(ticket));
    if (kv == NULL) return;
    dp_kv_report(kv, failure);
    dp_kv_close(kv);
}

static void dprun_running(dp_bootstrap_t *self)
{
    dp_kv_running(((dprun_t *)self)->kv);
}

static void dprun_destroy(dp_bootstrap_t *self)
{
    dp_kv_close(((dprun_t *)self)->kv);
    free(self);
}

/* The rendezvous may be busy with strangers; but once its door is closed nobody gets in. */
static dp_status_t connect_to_dprun(dprun_t *dprun, const dp_kv_ticket_t *ticket, dp_error_t *error)
{
    const struct timespec pause = {0, RETRY_NS};
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status;

    for (;;) {
        status =
            dp_kv_connect(ticket, dprun->base.rank, dprun->base.deadline_ns, &dprun->kv, &cause);
        if (status != DP_ERR_SYSTEM || dp_now_ns() >= dprun->base.deadline_ns) break;
        nanosleep(&pause, NULL);
    }
    if (status == DP_OK) return DP_OK;
    if (status != DP_ERR_PEER_LOST) return dp_error_set(error, status, "%s", cause.text);
    return dp_error_set(error, DP_ERR_CONFIG,
                        "%s: the ranks of this job have met before, or dprun has ended. A rank has "
                        "one dp_init(): a second program in it needs a dprun of its own",
                        cause.text);
}

static const dp_bootstrap_ops_t dprun_ops = {"dprun", dprun_exchange, dprun_report, dprun_running,
                                             dprun_destroy};

dp_status_t dp_bootstrap_create_dprun(const dp_config_t *config, dp_bootstrap_t **out,
                                      dp_error_t *error)
{
    dprun_t *dprun = calloc(1, sizeof(*dprun));
    dp_kv_ticket_t ticket;
    dp_status_t status;

    if (dprun == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for the rendezvous");
    }
    dprun->base.ops = &dprun_ops;
    dprun->base.rank = config->rank;
    dprun->base.size = config->world_size;
    dprun->base.local_rank = config->local_rank;
    dprun->base.local_size = config->local_size;
    status = dp_kv_ticket_read(config->bootstrap_fd, &ticket, error);
    if (status != DP_OK) goto fail;
    memcpy(dprun->base.job, ticket.job, sizeof(dprun->base.job));
    dprun->base.tag = dp_auth_tag(&ticket.secret, "control");
    dp_auth_derive(&ticket.secret, "lines", "", 0, &dprun->base.secret);
    dprun->base.deadline_ns = dp_now_ns() + config->start_timeout_ns;
    status = connect_to_dprun(dprun, &ticket, error);
    explicit_bzero(&ticket, sizeof(ticket)); /* the secret has done its work */
    if (status != DP_OK) goto fail;
    *out = &dprun->base;
    return DP_OK;
fail:
    dprun_destroy(&dprun->base);
    return status;
}
