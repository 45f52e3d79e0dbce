/*
 * reach_internal.h - what listening (reach.c) and trying (reach_try.c) share: the two messages.
 *
 * The caller sends a hello, the called node an answer, and closes. Nothing else is ever said.
 *
 *     hello   u32 magic, u16 version, u16 0, u32 from, u32 to, nonce [32], proof [32] of all before
 *     answer  u32 magic, u32 node, proof [32] of the nonce and the node
 *
 * A hello that is played again gets the answer once more, which tells a node's number alone.
 */
#ifndef DP_NETWORK_REACH_INTERNAL_H
#define DP_NETWORK_REACH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/base/door.h"
#include "runtime/network/reach.h"

#define REACH_NONCE_BYTES 32
#define REACH_HELLO_BYTES (16 + REACH_NONCE_BYTES + DP_PROOF_BYTES)
#define REACH_ANSWER_BYTES (8 + DP_PROOF_BYTES)

struct dp_reach {
    dp_secret_t secret;
    int node;
    dp_reach_card_t card;
    dp_door_t *door; /* the thread's only, once it runs */
    int stop_fd;     /* readable: the thread shall end */
    int has_thread;
    pthread_t thread;
};

void dp_reach_hello_write(const dp_secret_t *secret, int from, int to,
                          const uint8_t nonce[REACH_NONCE_BYTES], uint8_t hello[REACH_HELLO_BYTES]);
/* Writes the answer of `node` to a hello. 0: the hello proves nothing. */
int dp_reach_hello_answer(const dp_secret_t *secret, int node,
                          const uint8_t hello[REACH_HELLO_BYTES],
                          uint8_t answer[REACH_ANSWER_BYTES]);
/* The node that answered; -1: the answer comes from a program that does not know the secret. */
int dp_reach_answer_read(const dp_secret_t *secret, const uint8_t nonce[REACH_NONCE_BYTES],
                         const uint8_t answer[REACH_ANSWER_BYTES]);

#endif
