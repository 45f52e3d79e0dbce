/*
 * usage.h - what this process takes of the machine: memory and processor time, as Linux counts
 * them.
 */
#ifndef GPT2_USAGE_H
#define GPT2_USAGE_H

typedef struct gpt2_usage {
    double pss;         /* bytes; memory shared with other processes counts in equal parts */
    double own;         /* bytes that no other process maps */
    double peak_rss;    /* bytes, at most so far; shared memory counts in full */
    double cpu_seconds; /* of all threads, user and kernel */
} gpt2_usage_t;

/* Zeros where the kernel does not say. Takes some ms for each GiB. */
gpt2_usage_t gpt2_usage_now(void);

#endif
