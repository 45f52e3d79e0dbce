/*
 * ucx_worker.c - a UCX context and worker set up for control messages.
 *
 * Called by ucx.c. TCP only: UCX notices the death of a peer behind shared memory late or never,
 * behind RDMA after seconds, behind TCP within a millisecond, and a small message costs little
 * more. TCP also wakes a thread that sleeps while another one polls, which RDMA does not. Settings
 * go through ucp_config_modify(), never the environment, which belongs to the program.
 */
#include "runtime/transport/ucx_worker.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>

/* "self" would only serve messages to oneself, and hide that there is no network device. */
#define CONTROL_TLS "tcp"

/* UCX listens on each device it is given. DP_UCX_DEVICES counts where it is a network interface:
 * others know no TCP. */
static const char *devices_of(const dp_config_t *config)
{
    if (config->ucx_devices[0] != '\0' && if_nametoindex(config->ucx_devices) != 0)
        return config->ucx_devices;
    if (config->net_interface[0] != '\0') return config->net_interface;
    return config->ucx_devices[0] != '\0' ? config->ucx_devices : "all";
}

/* "eth0 lo": what DP_UCX_DEVICES could say. */
static void list_devices(char *text, size_t room)
{
    struct if_nameindex *devices = if_nameindex();
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; devices != NULL && devices[i].if_index != 0 && used < room; i++) {
        const int wrote =
            snprintf(text + used, room - used, "%s%s", i > 0 ? " " : "", devices[i].if_name);

        used += wrote > 0 ? (size_t)wrote : 0;
    }
    if (devices != NULL) if_freenameindex(devices);
}

static dp_status_t worker_error(dp_error_t *error, int rank, const dp_config_t *config,
                                const char *what, ucs_status_t status)
{
    if (status == UCS_ERR_NO_DEVICE || status == UCS_ERR_UNREACHABLE) {
        char devices[128];

        list_devices(devices, sizeof(devices));
        return dp_error_set(
            error, DP_ERR_SYSTEM,
            "rank %d: no usable UCX device: UCX_TLS is %s (fixed, for control "
            "messages), the devices are \"%s\" (DP_UCX_DEVICES, else DP_NET_INTERFACE), this "
            "node has: %s; UCX says: %s",
            rank, CONTROL_TLS, devices_of(config), devices, ucs_status_string(status));
    }
    return dp_error_set(error, DP_ERR_SYSTEM,
                        "rank %d: %s failed with UCX_TLS %s and devices \"%s\": %s", rank, what,
                        CONTROL_TLS, devices_of(config), ucs_status_string(status));
}

static ucs_status_t configure(ucp_config_t *ucx, const dp_config_t *config)
{
    ucs_status_t status = ucp_config_modify(ucx, "TLS", CONTROL_TLS);

    if (status == UCS_OK) status = ucp_config_modify(ucx, "NET_DEVICES", devices_of(config));
    /* UCX 1.13 ends the process when creating an endpoint finds its peer gone and is refused a new
     * connection within the call (tcp_ep.c:478), and when of several events read together one ends
     * what another is about (tcp_iface.c:307). */
    if (status == UCS_OK) status = ucp_config_modify(ucx, "CONN_NB", "y");
    if (status == UCS_OK) status = ucp_config_modify(ucx, "MAX_POLL", "1");
    if (status == UCS_OK && config->net_version == 6)
        status = ucp_config_modify(ucx, "AF_PRIO", "inet6");
    return status;
}

dp_status_t dp_ucx_worker_open(dp_ucx_worker_t *worker, int rank, const dp_config_t *config,
                               dp_error_t *error)
{
    const ucp_params_t context_params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .name = "dp-control",
    };
    const ucp_worker_params_t worker_params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucp_config_t *ucx;
    ucs_status_t status;

    memset(worker, 0, sizeof(*worker));
    worker->fd = -1;
    status = ucp_config_read(NULL, NULL, &ucx);
    if (status != UCS_OK) return worker_error(error, rank, config, "ucp_config_read", status);
    status = configure(ucx, config);
    if (status != UCS_OK) {
        ucp_config_release(ucx);
        return worker_error(error, rank, config, "ucp_config_modify", status);
    }
    status = ucp_init(&context_params, ucx, &worker->context);
    ucp_config_release(ucx);
    if (status != UCS_OK) {
        worker->context = NULL;
        return worker_error(error, rank, config, "ucp_init", status);
    }
    status = ucp_worker_create(worker->context, &worker_params, &worker->worker);
    if (status != UCS_OK) {
        worker->worker = NULL;
        dp_ucx_worker_close(worker);
        return worker_error(error, rank, config, "ucp_worker_create", status);
    }
    status = ucp_worker_get_efd(worker->worker, &worker->fd);
    if (status != UCS_OK) {
        dp_ucx_worker_close(worker);
        return worker_error(error, rank, config, "ucp_worker_get_efd", status);
    }
    return DP_OK;
}

void dp_ucx_worker_close(dp_ucx_worker_t *worker)
{
    if (worker->worker != NULL) ucp_worker_destroy(worker->worker);
    if (worker->context != NULL) ucp_cleanup(worker->context);
    memset(worker, 0, sizeof(*worker));
    worker->fd = -1;
}
