/*
 * simt_mma.cc - what a warp's tensor core instructions compute, by the layouts of the PTX ISA.
 *
 * The products of mma are exact and their sum is rounded once; a device rounds in steps of its own,
 * so tests compare with a tolerance. It must not know which kernel asks.
 */
#include "tests/gpu/double/simt.h"

#include "kernels/convert.h"

static unsigned long long conflicts;

unsigned long long simt_bank_conflicts(void)
{
    return __atomic_load_n(&conflicts, __ATOMIC_RELAXED);
}

/* How the type converts. */
typedef float (*widen_t)(uint16_t);

template <widen_t widen> static double half_of(uint32_t word, unsigned half)
{
    return (double)widen((uint16_t)(word >> (16 * half)));
}

/* Element [row][k] of A: of a thread's eight, in order, two lie side by side, then come eight rows
 * below, then eight columns to the right. */
template <widen_t widen>
static double element_of_a(const uint32_t (&given)[32][6], unsigned row, unsigned k)
{
    const unsigned lane = row % 8 * 4 + k % 8 / 2;

    return half_of<widen>(given[lane][row / 8 + k / 8 * 2], k % 2);
}

template <widen_t widen>
static double element_of_b(const uint32_t (&given)[32][6], unsigned k, unsigned column)
{
    const unsigned lane = column * 4 + k % 8 / 2;

    return half_of<widen>(given[lane][4 + k / 8], k % 2);
}

template <widen_t widen>
static void multiply_warp(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const uint32_t give[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const unsigned group = simt_lane() / 4, pair = simt_lane() % 4 * 2;
    uint32_t given[32][6];
    double rows[2][16], columns[2][16]; /* of A and B, those that meet in c */

    simt_exchange_all(give, given, sizeof(give));
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < 16; k++) {
            rows[i][k] = element_of_a<widen>(given, group + i * 8, k);
            columns[i][k] = element_of_b<widen>(given, k, pair + i);
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        double sum = c[i];

        for (unsigned k = 0; k < 16; k++)
            sum += rows[i / 2][k] * columns[i % 2][k];
        c[i] = (float)sum;
    }
}

void simt_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply_warp<dp_convert_bf16_to_f32>(c, a, b0, b1);
}

void simt_mma_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    multiply_warp<dp_convert_f16_to_f32>(c, a, b0, b1);
}

typedef struct matrix_row {
    const void *at;
    uint16_t elements[8];
} matrix_row_t;

/* The memory serves eight rows of 16 bytes at once, if all lie in different banks. */
static void count_conflicts(const matrix_row_t (&rows)[32])
{
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        unsigned rows_of[8] = {}, most = 0;

        for (unsigned i = 0; i < 8; i++) {
            const unsigned bank = (unsigned)((uintptr_t)rows[8 * matrix + i].at / 16 % 8);

            rows_of[bank]++;
            if (rows_of[bank] > most) most = rows_of[bank];
        }
        if (most > 1) __atomic_fetch_add(&conflicts, most - 1, __ATOMIC_RELAXED);
    }
}

void simt_ldmatrix(uint32_t (&out)[4], const void *row, bool is_transposed)
{
    const unsigned group = simt_lane() / 4, pair = simt_lane() % 4 * 2;
    matrix_row_t give = {row, {}}, rows[32];

    simt_check_shared(row, 16);
    memcpy(give.elements, row, 16);
    simt_exchange_all(&give, rows, sizeof(give));
    if (simt_lane() == 0) count_conflicts(rows);
    for (unsigned i = 0; i < 4; i++) {
        const matrix_row_t *matrix = rows + 8 * i;

        if (is_transposed) {
            out[i] = matrix[pair].elements[group] | (uint32_t)matrix[pair + 1].elements[group]
                                                        << 16;
        } else {
            out[i] = matrix[group].elements[pair] | (uint32_t)matrix[group].elements[pair + 1]
                                                        << 16;
        }
    }
}
