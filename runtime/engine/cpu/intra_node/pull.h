/*
 * pull.h - reads of memory that the ranks of a node do not share, out of the address space of the
 * rank that has it (process_vm_readv(), cross-memory attach in other libraries).
 *
 * Ranks try at the start whether they may read each other (dp_cpu_say_hello()); if one may not read
 * another, none of the node reads any. Ordinary memory is read, never written, by other ranks: if
 * an operation ends early, the worst that is left is a read of memory that the program uses for
 * something else by now, and that reader fails anyway.
 */
#ifndef DP_ENGINE_CPU_PULL_H
#define DP_ENGINE_CPU_PULL_H

#include "runtime/engine/cpu/cpu_internal.h"

/* Lets the other ranks try to read this rank's memory. */
typedef struct dp_pull_probe {
    uint64_t address, value; /* the 8 bytes there */
    int32_t pid;
    uint32_t pad;
} dp_pull_probe_t;

int dp_pull_try(const dp_pull_probe_t *probe); /* 1: it can be read */

/* Copies from an address in the process of a local rank of the world; else 0, and errno. Any
 * thread. */
int dp_pull_read(const dp_cpu_engine_t *engine, int local, uint64_t address, void *to,
                 size_t bytes);

/* The same for the running operation, from a local rank of the group. The text of a failure says
 * whose memory it was. */
dp_status_t dp_pull_fetch(dp_cpu_group_t *group, int local, uint64_t address, void *to,
                          size_t bytes);

/* Of the lane's buffer, on a node of so many ranks; and how much of it one other rank of the group
 * has: whole blocks of any type. */
size_t dp_pull_buffer_bytes(int count);
size_t dp_pull_chunk_bytes(const dp_cpu_group_t *group);

/* Finds a stretch of a local rank's input, at most dp_pull_chunk_bytes() of it: where it lies if
 * this process sees it, else in the lane's buffer, copied there. *in is valid until the next call
 * for that rank. */
dp_status_t dp_pull_input(dp_cpu_group_t *group, int local, size_t piece, size_t element,
                          size_t count, size_t elem_bytes, const void **in);

#endif
