/*
 * fabric.h - the devices of this machine that move data between nodes: a network interface, and
 * RDMA ports beside it.
 */
#ifndef DP_GROUP_FABRIC_H
#define DP_GROUP_FABRIC_H

#include <stddef.h>

/**
 * Lists what UCX may use, as in UCX_NET_DEVICES: "mlx5_0:1,eth0".
 *
 * Every active InfiniBand port is in the list, as the fabric's own manager joins what belongs
 * together. A port of RDMA over Ethernet is in it only if it is a port of this very interface, on
 * which the nodes were seen to reach each other: UCX believes all others to be reachable, too.
 *
 * @param sys       "/sys"
 * @param interface that leads to the other nodes; of loopback no port is listed
 * @return RDMA ports in the list
 */
int dp_fabric_devices(const char *sys, const char *interface, char *text, size_t room);

#endif
