/*
 * evaluate.h - the command `gpt2 eval`: HellaSwag and LAMBADA for a model file.
 */
#ifndef GPT2_EVALUATE_H
#define GPT2_EVALUATE_H

/* Runs the command, alone or under dprun; argv[0] is its name. Returns the exit code. */
int gpt2_evaluate(int argc, char **argv);

#endif
