/*
 * thread.h - how the library's threads start, sleep and spin: a start that leaves signals to the
 * program; futexes, sleep until a 32-bit word changes; the pause of a spin loop.
 */
#ifndef DP_BASE_THREAD_H
#define DP_BASE_THREAD_H

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/common.h"

/* As pthread_create() without attributes: 0, or an error number. All signals are blocked on the new
 * thread, so that they reach the program's own. It inherits the mask of its maker, which may be any
 * thread and has its own back afterwards. */
static inline int dp_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all;
    sigset_t kept;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &kept);
    code = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    return code;
}

/* A word is shared by threads of one process or, with the _shared forms, by processes that map the
 * same memory. */

/* Sleeps while *word == value, at most timeout_ns (UINT64_MAX: no limit). May return early. */
static inline void dp_futex_op(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns, int op)
{
    struct timespec limit = {(time_t)(timeout_ns / 1000000000u), (long)(timeout_ns % 1000000000u)};

    syscall(SYS_futex, word, op, value, timeout_ns == UINT64_MAX ? NULL : &limit, NULL, 0);
}

static inline void dp_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    dp_futex_op(word, value, timeout_ns, FUTEX_WAIT_PRIVATE);
}

static inline void dp_futex_wait_shared(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
    dp_futex_op(word, value, timeout_ns, FUTEX_WAIT);
}

static inline void dp_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void dp_futex_wake_shared(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* One turn of a spin loop: lets the other hardware thread run. */
static inline void dp_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
