/*
 * schedule.c - tables of actions, and their drawing; see schedule.h.
 */
#include "examples/gpt2/mesh/schedule.h"

#include <stdlib.h>
#include <string.h>

int gpt2_schedule_slots(gpt2_schedule_kind_t kind, int stages, int stage, int micros)
{
    const int behind = stages - stage;

    if (kind == GPT2_SCHEDULE_GPIPE) return micros;
    return behind < micros ? behind : micros;
}

void gpt2_schedule_make(gpt2_schedule_kind_t kind, int stages, int stage, int micros,
                        gpt2_action_t *actions)
{
    /* As many forwards as there are slots, then one backward for each forward, then the rest. */
    const int slots = gpt2_schedule_slots(kind, stages, stage, micros);
    int forward = 0;
    int backward = 0;

    for (int i = 0; i < 2 * micros; i++) {
        const int is_backward = forward == micros || forward - backward == slots;

        actions[i] = (gpt2_action_t){is_backward, is_backward ? backward++ : forward++};
    }
}

double gpt2_schedule_bubble(int stages, int micros)
{
    return (double)(stages - 1) / (double)(micros + stages - 1);
}

/* When each pass ends: forward and backward [stages][micros]; 0: it has not run. */
typedef struct drawing {
    int stages;
    int micros;
    int *ends[2];
    char *lines; /* [stages][width], three characters a column */
    size_t width;
} drawing_t;

/* When the stage before, or behind, has what the action needs; -1: it has not run yet. */
static int ready_at(const drawing_t *self, int stage, const gpt2_action_t *action)
{
    const int from = stage + (action->is_backward ? 1 : -1);
    int end;

    if (from < 0 || from == self->stages) return 0;
    end = self->ends[action->is_backward][from * self->micros + action->micro];
    return end == 0 ? -1 : end;
}

static void draw_action(drawing_t *self, int stage, const gpt2_action_t *action, int start)
{
    const int ticks = action->is_backward ? 2 : 1;
    char text[16];

    self->ends[action->is_backward][stage * self->micros + action->micro] = start + ticks;
    (void)snprintf(text, sizeof(text), "%c%-2d", action->is_backward ? 'b' : 'f',
                   action->micro % 100);
    for (int tick = 0; tick < ticks; tick++) {
        memcpy(self->lines + (size_t)stage * self->width + 3 * (size_t)(start + tick), text, 3);
    }
}

int gpt2_schedule_draw(gpt2_schedule_kind_t kind, int stages, int micros, FILE *out)
{
    const size_t passes = (size_t)stages * (size_t)micros;
    drawing_t self = {.stages = stages, .micros = micros};
    gpt2_action_t *actions = calloc(2 * passes, sizeof(*actions));
    int *clock = calloc((size_t)stages, sizeof(*clock));
    int *next = calloc((size_t)stages, sizeof(*next));
    size_t left = 2 * passes;

    self.width = 9 * (size_t)(micros + stages);
    self.ends[0] = calloc(passes, sizeof(int));
    self.ends[1] = calloc(passes, sizeof(int));
    self.lines = malloc((size_t)stages * self.width);
    if (actions == NULL || clock == NULL || next == NULL || self.ends[0] == NULL ||
        self.ends[1] == NULL || self.lines == NULL) {
        left = 0;
        stages = 0;
    } else {
        memset(self.lines, ' ', (size_t)stages * self.width);
    }
    for (int k = 0; k < stages; k++)
        gpt2_schedule_make(kind, stages, k, micros, actions + 2 * (size_t)k * (size_t)micros);
    while (left > 0) {
        for (int k = 0; k < stages; k++) {
            const gpt2_action_t *action = &actions[2 * k * micros + next[k]];
            const int ready = next[k] == 2 * micros ? -1 : ready_at(&self, k, action);
            const int start = ready > clock[k] ? ready : clock[k];

            if (ready < 0) continue;
            draw_action(&self, k, action, start);
            clock[k] = start + (action->is_backward ? 2 : 1);
            next[k]++;
            left--;
        }
    }
    for (int k = 0; k < stages; k++) {
        (void)fprintf(out, "stage %-3d %.*s\n", k, 3 * clock[k],
                      self.lines + (size_t)k * self.width);
    }
    free(actions);
    free(clock);
    free(next);
    free(self.ends[0]);
    free(self.ends[1]);
    free(self.lines);
    return stages == 0 ? -1 : 0;
}
