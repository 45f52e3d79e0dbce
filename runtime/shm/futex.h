/*
 * futex.h - sleeping on a word in memory, shared between threads or between processes.
 *
 * The word may be mapped at different addresses by different processes, so these never use the
 * private variants. A sleep ends by a wake, by its timeout or for no reason: callers look again.
 */
#ifndef DP_SHM_FUTEX_H
#define DP_SHM_FUTEX_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Sleeps while *word is `expected`, at most timeout_ns. */
static inline void dp_futex_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    const struct timespec timeout = {(time_t)(timeout_ns / 1000000000u),
                                     (long)(timeout_ns % 1000000000u)};

    syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

/* Wakes all who sleep on it. */
static inline void dp_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Tells the core that this is a polling loop. */
static inline void dp_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
