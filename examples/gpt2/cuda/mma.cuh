/*
 * mma.cuh - tensor cores and their feeding: mma, ldmatrix and cp.async as small functions.
 *
 * On a device each is one PTX instruction (sm_80 and later); under DP_SIMT each runs what the PTX
 * ISA says the warp does, with the documented layouts, on the CPU. They know nothing of tiles.
 *
 * How a warp holds matrices, with group = lane / 4 and pair = 2 * (lane % 4); a register
 * holds two neighbours, the lower one in its low half (PTX ISA, "Matrix Fragments for
 * mma.m16n8k16 with floating point type"):
 *
 *   A [16][16]  a[0]: row group,     columns pair, pair + 1     a[2]: row group,     columns + 8
 *               a[1]: row group + 8, columns pair, pair + 1     a[3]: row group + 8, columns + 8
 *   B [16][8]   b0: rows pair, pair + 1, column group           b1: rows + 8, column group
 *   C [16][8]   c[0], c[1]: row group,     columns pair, pair + 1
 *               c[2], c[3]: row group + 8, columns pair, pair + 1
 *
 * So the sums of two products side by side, rounded, are an A without any exchange.
 */
#ifndef GPT2_CUDA_MMA_CUH
#define GPT2_CUDA_MMA_CUH

#include "examples/gpt2/cuda/half.cuh"

#ifdef DP_SIMT
/* An address in shared memory; arithmetic in bytes. */
typedef uintptr_t shared_t;
#else
typedef uint32_t shared_t;
#endif

DEVICE_INLINE shared_t shared_address(const void *pointer)
{
#ifdef DP_SIMT
    return (shared_t)pointer;
#else
    return (shared_t)__cvta_generic_to_shared(pointer);
#endif
}

/* Which thread of its warp runs. Blocks are one-dimensional here. */
DEVICE_INLINE unsigned warp_lane(void)
{
    return threadIdx.x % 32;
}

/* ---- Products of a warp; all its threads call, with whole warps ----------------------------- */

/* c += A B, in fp32. */
DEVICE_INLINE void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#ifdef DP_SIMT
    simt_mma_bf16(c, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* The same of fp16. */
DEVICE_INLINE void mma_fp16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#ifdef DP_SIMT
    simt_mma_fp16(c, a, b0, b1);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Of the type that a kernel was made for. */
template <typename T>
DEVICE_INLINE void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (std::is_same<T, fp16_t>::value) {
        mma_fp16(c, a, b0, b1);
    } else {
        mma_bf16(c, a, b0, b1);
    }
}

/*
 * Four 8 x 8 matrices of 16-bit elements: threads 8 i to 8 i + 7 each give the address of a row of
 * matrix i, 16 bytes aligned to 16; out[i] of thread t gets row t / 4, columns 2 (t % 4) and the
 * next. Free of bank conflicts when the eight rows of each matrix lie in different 16 bytes
 * modulo 128.
 */
DEVICE_INLINE void ldmatrix(uint32_t (&out)[4], shared_t row)
{
#ifdef DP_SIMT
    simt_ldmatrix(out, (const void *)row, false);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
#endif
}

/* The same, each matrix transposed: out[i] of thread t gets rows 2 (t % 4) and the next of column
 * t / 4. */
DEVICE_INLINE void ldmatrix_transposed(uint32_t (&out)[4], shared_t row)
{
#ifdef DP_SIMT
    simt_ldmatrix(out, (const void *)row, true);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
#endif
}

/* ---- Copies in flight -------------------------------------------------------------------------
 *
 * A thread's copies since its last commit form a group. After async_wait<n>() all but its newest
 * n groups have arrived, for this thread; a barrier tells the others.
 */

/* 16 bytes, both sides aligned to 16, around the first-level cache; zeros, and `from` is not read,
 * unless is_there. */
DEVICE_INLINE void async_copy(shared_t to, const void *from, bool is_there)
{
#ifdef DP_SIMT
    simt_async_copy((void *)to, from, 16, is_there ? 16 : 0);
#else
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0)
                 : "memory");
#endif
}

DEVICE_INLINE void async_commit(void)
{
#ifdef DP_SIMT
    simt_async_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int left> DEVICE_INLINE void async_wait(void)
{
#ifdef DP_SIMT
    simt_async_wait(left);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

/* ---- Single accesses ------------------------------------------------------------------------ */

/* 16 bytes of global memory, aligned to 16. In PTX, as the compiler takes an assignment of a uint4
 * whose words come from separate registers apart into four stores. */
DEVICE_INLINE void global_store_16(void *to, const uint4 &words)
{
#ifdef DP_SIMT
    *(uint4 *)to = words;
#else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(words.x), "r"(words.y), "r"(words.z),
                   "r"(words.w)
                 : "memory");
#endif
}

DEVICE_INLINE void shared_store(shared_t to, uint32_t word)
{
#ifdef DP_SIMT
    simt_check_shared((const void *)to, 4);
    memcpy((void *)to, &word, 4);
#else
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
#endif
}

DEVICE_INLINE uint4 shared_load_16(shared_t from)
{
    uint4 words;

#ifdef DP_SIMT
    simt_check_shared((const void *)from, 16);
    memcpy(&words, (const void *)from, 16);
#else
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "r"(from)
                 : "memory");
#endif
    return words;
}

DEVICE_INLINE float2 shared_load_floats(shared_t from)
{
    float2 floats;

#ifdef DP_SIMT
    simt_check_shared((const void *)from, 8);
    memcpy(&floats, (const void *)from, 8);
#else
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(floats.x), "=f"(floats.y)
                 : "r"(from)
                 : "memory");
#endif
    return floats;
}

#endif
