/*
 * node_identity.h - which node this process is on: a node is what can share memory.
 *
 * Host names are for people: two nodes may both be called localhost, and containers of one computer
 * may or may not have a common memory. So ranks compare the texts below. Equal ones mean what the
 * comments say, among any number of ranks.
 */
#ifndef DP_GROUP_NODE_IDENTITY_H
#define DP_GROUP_NODE_IDENTITY_H

#define DP_NODE_IDENTITY_TEXT 160

typedef struct dp_node_identity {
    char kernel[DP_NODE_IDENTITY_TEXT];  /* equal: one kernel, so one clock and the same cores */
    char network[DP_NODE_IDENTITY_TEXT]; /* equal: also one network, so 127.0.0.1 is the same place
                                          */
    char node[DP_NODE_IDENTITY_TEXT];    /* equal: also one user, who can hand descriptors around */
} dp_node_identity_t;

void dp_node_identity_read(dp_node_identity_t *identity);

#endif
