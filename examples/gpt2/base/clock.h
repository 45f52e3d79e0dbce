/*
 * clock.h - seconds of a clock that never jumps.
 */
#ifndef GPT2_CLOCK_H
#define GPT2_CLOCK_H

double gpt2_now(void);

#endif
