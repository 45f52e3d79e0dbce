/*
 * nccl.h - what a test can ask of NCCL's double.
 *
 * The double has the calls of NCCL that the engine uses, over the double of the CUDA runtime: ranks
 * are threads of one process that meet by unique id, operations are work of their streams. It is
 * stricter than NCCL: ranks that disagree about an operation, and calls that NCCL does not allow in
 * the state a communicator is in, end the program with words. And as unkind: the first collective
 * of a communicator is in progress until all ranks have called it, as NCCL connects them only then;
 * to end one frees its memory, which waits for the whole device; memory is gone when it is freed.
 */
#ifndef DP_TESTS_NCCL_DOUBLE_H
#define DP_TESTS_NCCL_DOUBLE_H

#include <stddef.h>

typedef enum nccl_fault {
    NCCL_FAULT_VERSION,    /* ncclGetVersion() answers this number */
    NCCL_FAULT_INIT,       /* communicators are in progress for ever */
    NCCL_FAULT_INIT_ERROR, /* the nth one from now on cannot be made */
    NCCL_FAULT_LATE,       /* the nth one is on its stream, and in progress until the abort */
    NCCL_FAULT_ASYNC,      /* the nth group of operations from now on ends with a remote error */
    NCCL_FAULT_HANG,       /* the nth one from now on never ends */
    NCCL_FAULT_CALL,       /* the nth one is refused */
    NCCL_FAULT_ABORT,      /* ncclCommAbort() does not return */
    NCCL_FAULT_REGISTER,   /* ncclCommRegister() fails from now on */
    NCCL_FAULT_COUNT
} nccl_fault_t;

void nccl_double_reset(void);
void nccl_double_fault(nccl_fault_t fault, int value); /* 0: none */
/* Communicators, rooms and memory that were not given back. */
size_t nccl_double_live(void);
size_t nccl_double_aborted(void); /* since the reset */
size_t nccl_double_operations(void);

#endif
