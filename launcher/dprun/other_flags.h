/*
 * other_flags.h - flags of other launchers, and what dprun has in their place.
 *
 * options.c asks when it meets a flag that dprun does not have. Pure.
 */
#ifndef DP_LAUNCHER_OTHER_FLAGS_H
#define DP_LAUNCHER_OTHER_FLAGS_H

/* The words to write instead of a flag of torchrun, mpirun, mpiexec, srun or horovodrun; NULL where
 * the flag is none of theirs. Dashes before it, and whether words are joined by - or _, do not
 * matter. */
const char *dp_other_flag(const char *name);

#endif
