/*
 * schedule.h - in which order a stage of a pipeline runs the passes of a step, as a table of
 * actions.
 *
 * Pure: no clock, no messages. pipeline.c runs a table; --plan draws one; a test proves for all
 * small pipelines that the tables of all stages together end, within their memory.
 */
#ifndef GPT2_SCHEDULE_H
#define GPT2_SCHEDULE_H

#include <stdio.h>

/* Both run backward in the order of forward, so a gradient is added up in the order in which one
 * rank does that accumulates the same micro-batches: its bits are the same. */
typedef enum gpt2_schedule_kind {
    GPT2_SCHEDULE_1F1B, /* forwards until the first gradient can come, then backward and forward in
                           turn: keeps stages - k micro-batches on stage k */
    GPT2_SCHEDULE_GPIPE /* all forwards, then all backwards: keeps every micro-batch */
} gpt2_schedule_kind_t;

typedef struct gpt2_action {
    int is_backward;
    int micro; /* micro-batch */
} gpt2_action_t;

/* actions [2 * micros] = those of the stage, in order. */
void gpt2_schedule_make(gpt2_schedule_kind_t kind, int stages, int stage, int micros,
                        gpt2_action_t *actions);

/* Micro-batches between forward and backward on the stage, at most. */
int gpt2_schedule_slots(gpt2_schedule_kind_t kind, int stages, int stage, int micros);

/* The part of a step that a stage waits, where all stages cost alike: (K - 1) / (M + K - 1). */
double gpt2_schedule_bubble(int stages, int micros);

/* Draws the stages one above the other: a column is the time of a forward, a backward takes two. */
int gpt2_schedule_draw(gpt2_schedule_kind_t kind, int stages, int micros, FILE *out);

#endif
