/*
 * tokenize.h - the command `gpt2 tokenize`: texts become a file of tokens to train on.
 */
#ifndef GPT2_TOKENIZE_H
#define GPT2_TOKENIZE_H

/* Runs the command; argv[0] is its name. Returns the exit code. */
int gpt2_tokenize(int argc, char **argv);

#endif
