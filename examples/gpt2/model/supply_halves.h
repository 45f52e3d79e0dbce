/*
 * supply_halves.h - a supply whose weights have 16 bits, for passes that read fp32.
 *
 * Level 2 of mixed precision on a CPU, where ranks share weights out: they travel and lie in 16
 * bits, and each group is widened into fp32 memory for as long as a pass uses it. Called on the
 * thread that calls a supply. It must not know how weights travel.
 */
#ifndef GPT2_SUPPLY_HALVES_H
#define GPT2_SUPPLY_HALVES_H

#include "examples/gpt2/model/model.h"

typedef struct gpt2_supply_halves gpt2_supply_halves_t;

/* from: its weights point to 16-bit numbers; it and the layout are borrowed. Give the object back
 * with gpt2_supply_halves_destroy(). */
int gpt2_supply_halves_create(const gpt2_supply_t *from, const gpt2_layout_t *layout, int is_fp16,
                              gpt2_supply_halves_t **out, gpt2_error_t *error);
void gpt2_supply_halves_destroy(gpt2_supply_halves_t *self);

/* The supply for passes; the object's. */
const gpt2_supply_t *gpt2_supply_halves_get(const gpt2_supply_halves_t *self);

#endif
