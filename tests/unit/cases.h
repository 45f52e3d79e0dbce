/*
 * cases.h - cmocka, and what its header wants before it. Every file of cases includes it.
 */
#ifndef DP_TESTS_CASES_H
#define DP_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
