/*
 * apart.h - how far apart a floor places two tensors that one loop goes through.
 *
 * The first-level cache of AMD's Zen finds a line by a hash of address bits 12 to 27. Two tensors
 * that are a multiple of 256 MiB apart have the same hash element by element, and each access
 * throws the other's line out: a loop over both takes 3 to 12 times as long, the more so with
 * vectors of less than a line. That would be a cost of where a benchmark put its tensors.
 */
#ifndef DP_TESTS_APART_H
#define DP_TESTS_APART_H

#define APART_HASHED ((size_t)256 << 20)
/* Some pages, for that hash, and some lines, so that the tensors lie in other sets as well. */
#define APART ((size_t)(5 * 4096 + 33 * 64))

#endif
