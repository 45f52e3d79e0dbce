/*
 * cublaslt.h - what a test can ask of cuBLASLt's double.
 *
 * The double has the calls that the trainer uses, with plain loops behind them, as work of a stream
 * of the runtime's double. It is stricter than the library: it refuses types, epilogues, alignments
 * and attributes that it does not know, kernels that were not named for the very operation, and
 * workspaces that are too small.
 */
#ifndef DP_TESTS_CUBLASLT_DOUBLE_H
#define DP_TESTS_CUBLASLT_DOUBLE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUBLASLT_DOUBLE_KERNELS 5 /* candidates of every operation, from 0 */

void cublaslt_double_reset(void); /* no faults, all epilogues */
/* From now on no kernel has this epilogue (a cublasLtEpilogue_t). */
void cublaslt_double_refuse(int epilogue);
/* Bit k: kernel k fails when it runs. */
void cublaslt_double_break(unsigned kernels);
/* The nth call from now on that can fail does so; 0: none. */
void cublaslt_double_fail(int nth);
size_t cublaslt_double_live(void);      /* handles and descriptors that were not given back */
size_t cublaslt_double_searches(void);  /* heuristics asked since the reset */
size_t cublaslt_double_products(void);  /* products queued since the reset */
size_t cublaslt_double_additions(void); /* of these, such as add to what is there */
int cublaslt_double_last_kernel(void);  /* of the last product */
int cublaslt_double_last_epilogue(void);

#ifdef __cplusplus
}
#endif
#endif
