/*
 * mma.cu - the instructions of examples/gpt2/cuda/mma.cuh, each against a plain loop: on a GPU, or
 * (cuda_mma_simt ORDER) on the double, which shows that the two agree about who holds what.
 *
 * Fragments are filled and read element by element as the tables of the PTX ISA say, so the
 * layouts stand here a second time, from the thread's side. Exits with 77 without a device.
 */
#include "examples/gpt2/cuda/mma.cuh"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/convert.h"

static int failures;

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const int must_status = (int)(call);                                                       \
        if (must_status != 0) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString((cudaError_t)must_status));                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- Kernels of one warp -------------------------------------------------------------------- */

/* c [16][8] += a [16][16] b [16][8], all row-major. */
template <typename T> __global__ void mma_kernel(float *c, const uint16_t *a, const uint16_t *b)
{
    const unsigned group = threadIdx.x / 4, in_group = threadIdx.x % 4;
    uint32_t of_a[4] = {}, of_b[2] = {};
    float of_c[4];

    for (unsigned i = 0; i < 8; i++) {
        const unsigned row = i < 2 || (4 <= i && i < 6) ? group : group + 8;
        const unsigned column = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);

        of_a[i / 2] |= (uint32_t)a[row * 16 + column] << (16 * (i % 2));
    }
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0);

        of_b[i / 2] |= (uint32_t)b[row * 8 + group] << (16 * (i % 2));
    }
    for (unsigned i = 0; i < 4; i++)
        of_c[i] = c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)];
    mma<T>(of_c, of_a, of_b[0], of_b[1]);
    for (unsigned i = 0; i < 4; i++)
        c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = of_c[i];
}

/* Elements of four matrices as they arrive: out [2][4][32 threads][2]; row r of matrix m is
 * 16-byte row order [8 m + r] of in [32][8]. */
__global__ void ldmatrix_kernel(uint16_t *out, const uint16_t *in, const int *order)
{
    uint32_t words[4];

    DYNAMIC_SHARED(uint16_t, memory);
    for (unsigned i = threadIdx.x; i < 32 * 8; i += 32)
        memory[i] = in[i];
    __syncwarp();
    for (unsigned is_transposed = 0; is_transposed < 2; is_transposed++) {
        const shared_t row = shared_address(memory + order[threadIdx.x] * 8);

        if (is_transposed != 0) {
            ldmatrix_transposed(words, row);
        } else {
            ldmatrix(words, row);
        }
        for (unsigned i = 0; i < 4; i++) {
            out[((is_transposed * 4 + i) * 32 + threadIdx.x) * 2] = (uint16_t)words[i];
            out[((is_transposed * 4 + i) * 32 + threadIdx.x) * 2 + 1] = (uint16_t)(words[i] >> 16);
        }
    }
}

/* Three groups of copies; what arrived after each wait, read by the next thread. Of every third
 * 16 bytes nothing is there. */
__global__ void copy_kernel(uint32_t *out, const uint32_t *in)
{
    const unsigned next = (threadIdx.x + 1) % 32;

    DYNAMIC_SHARED(unsigned char, memory);
    for (unsigned i = 0; i < 3; i++) {
        const unsigned at = i * 32 + threadIdx.x;

        async_copy(shared_address(memory + at * 16), in + at * 4, at % 3 != 0);
        async_commit();
    }
    for (unsigned i = 0; i < 3; i++) {
        uint4 words;

        if (i == 0) {
            async_wait<2>();
        } else if (i == 1) {
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncwarp();
        words = shared_load_16(shared_address(memory + (i * 32 + next) * 16));
        *(uint4 *)(void *)(out + (i * 32 + next) * 4) = words;
    }
}

/* out: [0] pack, [1][2] unpack, [3 ..] powers of two; [8] a stored word, [9][10] a pair;
 * [11 ..] as fp16: packed, two words of it unpacked, what is too large. */
__global__ void words_kernel(uint32_t *out)
{
    const float powers[5] = {fast_exp2(3.0f), fast_exp2(-2.0f), fast_exp2(0.5f),
                             fast_exp2(-INFINITY), fast_exp2(-200.0f)};
    const uint32_t packed = pack_bf16(1.01171875f, -3.0f); /* a tie: to even */
    const float2 both = unpack_bf16(packed);
    const uint32_t packed16 = pack_fp16(1.00048828125f, -0x1p-24f); /* a tie, and a subnormal */
    const float2 both16 = unpack_fp16(packed16);
    float2 pair;

    DYNAMIC_SHARED(uint32_t, memory);
    if (threadIdx.x != 0) return;
    out[0] = packed;
    memcpy(out + 1, &both, 8);
    memcpy(out + 3, powers, sizeof(powers));
    shared_store(shared_address(memory + 2), 0x3f800000u);
    shared_store(shared_address(memory + 3), packed);
    out[8] = shared_load_16(shared_address(memory)).z;
    pair = shared_load_floats(shared_address(memory + 2));
    memcpy(out + 9, &pair, 8);
    out[11] = packed16;
    memcpy(out + 12, &both16, 8);
    out[14] = pack_fp16(65519.0f, -65520.0f);
}

/* ---- The host's side ------------------------------------------------------------------------ */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void *to_device(const void *from, size_t bytes)
{
    void *memory;

    MUST(cudaMalloc(&memory, bytes));
    MUST(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

template <typename T> static uint16_t half_of(float value)
{
    return std::is_same<T, fp16_t>::value ? dp_convert_f32_to_f16(value)
                                          : dp_convert_f32_to_bf16(value);
}

template <typename T> static double of_half(uint16_t value)
{
    return (double)(std::is_same<T, fp16_t>::value ? dp_convert_f16_to_f32(value)
                                                   : dp_convert_bf16_to_f32(value));
}

template <typename T> static void check_mma(uint64_t *state)
{
    uint16_t a[16 * 16], b[16 * 8];
    float c[16 * 8], got[16 * 8];
    void *on_device[3];

    for (int i = 0; i < 16 * 16; i++)
        a[i] = half_of<T>((float)next_random(state) * 0x1p-30f - 1.0f);
    for (int i = 0; i < 16 * 8; i++) {
        b[i] = half_of<T>((float)next_random(state) * 0x1p-30f - 1.0f);
        c[i] = (float)next_random(state) * 0x1p-30f;
    }
    on_device[0] = to_device(c, sizeof(c));
    on_device[1] = to_device(a, sizeof(a));
    on_device[2] = to_device(b, sizeof(b));
    MUST(LAUNCH(mma_kernel<T>, 1, 32, 0, NULL, (float *)on_device[0], (uint16_t *)on_device[1],
                (uint16_t *)on_device[2]));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(got, on_device[0], sizeof(got), cudaMemcpyDeviceToHost));
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            double sum = c[row * 8 + column];

            for (int k = 0; k < 16; k++) {
                sum += of_half<T>(a[row * 16 + k]) * of_half<T>(b[k * 8 + column]);
            }
            /* of 17 terms below 1 each is kept to 2^-23 or so */
            EXPECT(fabs(got[row * 8 + column] - sum) < 17 * 0x1p-22, "mma [%d][%d]: %.9g, not %.9g",
                   row, column, (double)got[row * 8 + column], sum);
        }
    }
    for (int i = 0; i < 3; i++)
        MUST(cudaFree(on_device[i]));
}

static void check_ldmatrix(uint64_t *state)
{
    uint16_t in[32 * 8], out[2 * 4 * 32 * 2];
    int order[32];
    void *on_device[3];

    for (int i = 0; i < 32 * 8; i++)
        in[i] = (uint16_t)(i * 257 + 3);
    for (int i = 0; i < 32; i++)
        order[i] = i;
    for (int i = 31; i > 0; i--) {
        const int other = (int)(next_random(state) % (unsigned)(i + 1)), swap = order[i];

        order[i] = order[other];
        order[other] = swap;
    }
    on_device[0] = to_device(out, sizeof(out));
    on_device[1] = to_device(in, sizeof(in));
    on_device[2] = to_device(order, sizeof(order));
    MUST(LAUNCH(ldmatrix_kernel, 1, 32, sizeof(in), NULL, (uint16_t *)on_device[0],
                (uint16_t *)on_device[1], (int *)on_device[2]));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(out, on_device[0], sizeof(out), cudaMemcpyDeviceToHost));
    for (int is_transposed = 0; is_transposed < 2; is_transposed++) {
        for (int i = 0; i < 4 * 32 * 2; i++) {
            const int matrix = i / 64, thread = i / 2 % 32;
            const int at[2] = {thread / 4, thread % 4 * 2 + i % 2};
            const int row = at[is_transposed], column = at[1 - is_transposed];
            const uint16_t want = in[order[8 * matrix + row] * 8 + column];

            EXPECT(out[is_transposed * 256 + i] == want,
                   "ldmatrix%s, matrix %d, thread %d: %u, not %u", is_transposed ? ".trans" : "",
                   matrix, thread, out[is_transposed * 256 + i], want);
        }
    }
    for (int i = 0; i < 3; i++)
        MUST(cudaFree(on_device[i]));
}

static void check_copies(void)
{
    uint32_t in[96 * 4], out[96 * 4];
    void *on_device[2];

    for (uint32_t i = 0; i < 96 * 4; i++)
        in[i] = i + 1;
    memset(out, 0xff, sizeof(out));
    on_device[0] = to_device(out, sizeof(out));
    on_device[1] = to_device(in, sizeof(in));
    MUST(LAUNCH(copy_kernel, 1, 32, sizeof(in), NULL, (uint32_t *)on_device[0],
                (uint32_t *)on_device[1]));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(out, on_device[0], sizeof(out), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < 96 * 4; i++) {
        const uint32_t want = i / 4 % 3 != 0 ? i + 1 : 0;

        EXPECT(out[i] == want, "word %u of a copy: %u, not %u", i, out[i], want);
    }
    for (int i = 0; i < 2; i++)
        MUST(cudaFree(on_device[i]));
}

static void check_words(void)
{
    uint32_t out[15] = {};
    const float want[5] = {8.0f, 0.25f, 1.41421356f, 0.0f, 0.0f};
    void *on_device = to_device(out, sizeof(out));

    MUST(LAUNCH(words_kernel, 1, 32, 32, NULL, (uint32_t *)on_device));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(out, on_device, sizeof(out), cudaMemcpyDeviceToHost));
    EXPECT(out[0] == 0xc0403f82u, "packed %08x", out[0]);
    EXPECT(dp_bits_f32(out[1]) == 1.015625f && dp_bits_f32(out[2]) == -3.0f, "unpacked %g, %g",
           (double)dp_bits_f32(out[1]), (double)dp_bits_f32(out[2]));
    for (int i = 0; i < 5; i++) {
        EXPECT(fabsf(dp_bits_f32(out[3 + i]) - want[i]) <= want[i] * 1e-6f, "power %d: %g", i,
               (double)dp_bits_f32(out[3 + i]));
    }
    EXPECT(out[8] == 0x3f800000u && out[9] == 0x3f800000u && out[10] == out[0],
           "words of shared memory: %08x, %08x, %08x", out[8], out[9], out[10]);
    EXPECT(out[11] == 0x80013c00u, "packed %08x as fp16", out[11]);
    EXPECT(dp_bits_f32(out[12]) == 1.0f && dp_bits_f32(out[13]) == -0x1p-24f, "unpacked %g, %g",
           (double)dp_bits_f32(out[12]), (double)dp_bits_f32(out[13]));
    EXPECT(out[14] == 0xfc007bffu, "packed %08x as fp16", out[14]);
    MUST(cudaFree(on_device));
}

int main(int argc, char **argv)
{
    uint64_t state = 0x9e3779b97f4a7c15u;
    int devices = 0;

    if (argc > 2) {
        fprintf(stderr, "usage: %s [order of the simulated threads]\n", argv[0]);
        return 2;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
#ifdef DP_SIMT
    simt_order = argc == 2 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
#endif
    for (int i = 0; i < 8; i++) {
        check_mma<bf16_t>(&state);
        check_mma<fp16_t>(&state);
        check_ldmatrix(&state);
    }
    check_copies();
    check_words();
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
