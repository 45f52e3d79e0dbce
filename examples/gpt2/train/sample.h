/*
 * sample.h - the text that a run writes at its end: a prompt, and what the model makes of it.
 *
 * Called by report.c on rank 0, and by whatever needs the vocabulary of --tokenizer. A token is a
 * byte of a text, or a number, or with a vocabulary the bytes it stands for.
 */
#ifndef GPT2_SAMPLE_H
#define GPT2_SAMPLE_H

#include "examples/gpt2/tokens/encode.h"
#include "examples/gpt2/train/trainer.h"

/* Opens what --tokenizer names and sets --vocab where it was not given; *out = NULL without the
 * flag. Refuses it for a text, whose bytes are the tokens, and a --vocab that is too small. */
int gpt2_tokenizer_open(gpt2_options_t *options, int is_text, gpt2_vocabulary_t **out,
                        gpt2_error_t *error);

/* The tokens of --sample; none without the flag. Refuses a prompt that has none, or one outside the
 * model's vocabulary. */
int gpt2_sample_read(const gpt2_trainer_t *trainer, gpt2_tokens_t *prompt, gpt2_error_t *error);

/* Prints the prompt and --sample-tokens more, fewer where the model ends the text. */
int gpt2_sample_print(const gpt2_trainer_t *trainer, const gpt2_model_t *model,
                      const gpt2_tokens_t *prompt, gpt2_error_t *error);

#endif
