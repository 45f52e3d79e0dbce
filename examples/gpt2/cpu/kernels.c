/*
 * kernels.c - which instruction sets this build has, and which of them this processor runs.
 *
 * Asked once, when a model is made. The table is constant, so every thread of the team calls
 * through it without a lock.
 */
#include "examples/gpt2/cpu/kernels.h"

#include <string.h>

#if defined(GPT2_WITH_X86)
#include <cpuid.h>
#endif

extern const gpt2_kernels_t gpt2_kernels_base;
#if defined(GPT2_WITH_X86)
extern const gpt2_kernels_t gpt2_kernels_avx2;
extern const gpt2_kernels_t gpt2_kernels_avx512;
#endif

static const gpt2_kernels_t *const BASE_ONLY[] = {&gpt2_kernels_base, NULL};

#if defined(GPT2_WITH_X86)
/* Every processor with AVX2 converts fp16, but a virtual machine may hide that. */
static int has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const gpt2_kernels_t *const *gpt2_kernels_list(void)
{
#if defined(GPT2_WITH_X86)
    static const gpt2_kernels_t *const all[] = {&gpt2_kernels_avx512, &gpt2_kernels_avx2,
                                                &gpt2_kernels_base, NULL};

    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return all;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
        return all + 1;
    }
#endif
    return BASE_ONLY;
}

static int listed(const char *word, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(word, *words) == 0) return 1;
    }
    return 0;
}

gpt2_gemm_fn gpt2_gemm_choose(const char *which, const gpt2_kernels_t *kernels)
{
    static const char *const avx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids", NULL};
    static const char *const avx2[] = {"Haswell", "Zen", NULL};
    gpt2_gemm_fn blas = gpt2_gemm_blas();
    const char *core = gpt2_gemm_blas_core();

    if (strcmp(which, "own") == 0) return kernels->gemm;
    if (strcmp(which, "blas") == 0) return blas;
    if (strcmp(which, "dnnl") == 0) return gpt2_gemm_dnnl();
    if (strcmp(which, "dnnl-bf16") == 0) return gpt2_gemm_dnnl_bf16();
    if (gpt2_gemm_dnnl() != NULL && strcmp(kernels->isa, "base") != 0) return gpt2_gemm_dnnl();
    if (blas == NULL) return kernels->gemm;
    if (*core == '\0' || strcmp(kernels->isa, "base") == 0) return blas;
    if (listed(core, avx512)) return blas;
    if (listed(core, avx2) && strcmp(kernels->isa, "avx2") == 0) return blas;
    return kernels->gemm;
}

gpt2_gemm_fn gpt2_gemm_choose_precise(gpt2_precision_t precision, const char *which,
                                      const gpt2_kernels_t *kernels)
{
    if (precision == GPT2_FP32) return gpt2_gemm_choose(which, kernels);
    if (precision == GPT2_BF16 && strcmp(which, "auto") == 0 && gpt2_gemm_bf16() != NULL) {
        return gpt2_gemm_bf16();
    }
    if (strcmp(which, "dnnl-bf16") == 0) return precision == GPT2_BF16 ? gpt2_gemm_bf16() : NULL;
    return gpt2_gemm_rounded(gpt2_gemm_choose(which, kernels), precision);
}

const char *gpt2_gemm_name(gpt2_gemm_fn gemm, const gpt2_kernels_t *kernels)
{
    const char *rounded = gpt2_gemm_rounded_name(gemm);

    if (rounded != NULL) return rounded;
    if (gemm == kernels->gemm) return "our own kernel";
    if (gemm == gpt2_gemm_dnnl()) return "oneDNN";
    if (gemm == gpt2_gemm_dnnl_bf16()) return "oneDNN in bf16";
    return *gpt2_gemm_blas_core() == '\0' ? "CBLAS" : gpt2_gemm_blas_core();
}
