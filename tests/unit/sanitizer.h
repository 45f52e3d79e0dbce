/*
 * sanitizer.h - whether a sanitizer of gcc's watches this program. It takes ten times as long for
 * the same code and looks at how memory is used, so tests of many sizes take fewer of them there;
 * the dev build has all.
 */
#ifndef DP_TESTS_UNIT_SANITIZER_H
#define DP_TESTS_UNIT_SANITIZER_H

#if defined(__SANITIZE_THREAD__)
enum { under_sanitizer = 1, under_thread_sanitizer = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { under_sanitizer = 1, under_thread_sanitizer = 0 };
#else
enum { under_sanitizer = 0, under_thread_sanitizer = 0 };
#endif

#endif
