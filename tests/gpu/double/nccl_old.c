/*
 * nccl_old.c - a libnccl.so.2 that has the calls of version 2.26.2 which the plug-in uses, and no
 * newer ones: what a program may have loaded before. There is nothing behind them but the version;
 * the plug-in must be opened beside it.
 */
int ncclGetVersion(int *version);

int ncclGetVersion(int *version)
{
    *version = 22602;
    return 0;
}

/* These are never called, so their parameters do not matter. */
#define CALL(name)                                                                                 \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 3; /* ncclInternalError */                                                          \
    }

CALL(ncclAllGather)
CALL(ncclAllReduce)
CALL(ncclBroadcast)
CALL(ncclCommAbort)
CALL(ncclCommDeregister)
CALL(ncclCommDestroy)
CALL(ncclCommFinalize)
CALL(ncclCommGetAsyncError)
CALL(ncclCommInitRankConfig)
CALL(ncclCommRegister)
CALL(ncclGetErrorString)
CALL(ncclGetLastError)
CALL(ncclGetUniqueId)
CALL(ncclGroupEnd)
CALL(ncclGroupStart)
CALL(ncclMemAlloc)
CALL(ncclMemFree)
CALL(ncclRecv)
CALL(ncclReduce)
CALL(ncclReduceScatter)
CALL(ncclSend)
