/*
 * pmi_wire.h - the words of PMI-1 and PMI-2, the protocols in which a process of an MPI launcher
 * talks to it through the socket PMI_FD.
 *
 * PMI-1: lines "cmd=NAME key=value key=value\n". PMI-2: after one such line, messages of six digits
 * that count the bytes which follow, "cmd=NAME;key=value;key=value;", a semicolon in a value
 * doubled. Pure, so that a fuzzer can feed it. Described in MPICH's doc/wiki and Flux RFC 13.
 */
#ifndef DP_GROUP_PMI_WIRE_H
#define DP_GROUP_PMI_WIRE_H

#include "runtime/base/error.h"

#define DP_PMI_MESSAGE_MAX 4096 /* what is accepted; ours are below 1.3 KiB */
#define DP_PMI_LENGTH_BYTES 6

/* Finds a key of a message without its end (the newline of PMI-1): 1, value terminated; 0: it is
 * not there; -1: longer than room, or the message is malformed up to there. */
int dp_pmi_find(int version, const char *message, size_t bytes, const char *key, char *value,
                size_t room);

/* A message that answers `command` ("cmd" is that) and says success (rc is 0 or not there). The
 * error tells what the launcher said instead. */
dp_status_t dp_pmi_check(int version, const char *message, size_t bytes, const char *command,
                         dp_error_t *error);

/* The six digits in front of a PMI-2 message, blanks before or after them; 0: no such number, or
 * one above DP_PMI_MESSAGE_MAX. */
size_t dp_pmi_length(const char digits[DP_PMI_LENGTH_BYTES]);

#endif
