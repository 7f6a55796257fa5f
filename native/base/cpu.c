/*
 * base/cpu.c - what this CPU can do: cpuid and xgetbv on x86-64; the kernel's word on aarch64
 *
 * A feature counts only if the operating system lets programs use it: on x86 that means it saves the wide
 * registers (xgetbv), on ARM the system is asked directly, because the ID registers are not readable by
 * programs everywhere. Nothing is cached: the answer takes microseconds and is asked for once per process.
 *
 * Source   Intel SDM vol. 1 ch. 13 (XCR0) and vol. 2 (CPUID); Linux Documentation/arch/arm64/elf_hwcaps;
 *          Apple "Determining Instruction Set Characteristics" (hw.optional.arm.*)
 * Threads  any
 */
#include "base/cpu.h"

#include <string.h>

#if defined __x86_64__

#include <cpuid.h>

/* The register sets that the system saves on a context switch. Inline, because the intrinsic needs -mxsave. */
static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* `signature`: eax of leaf 1. */
static int is_amd_family(uint32_t signature, uint32_t family)
{
    uint32_t a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163      /* AuthenticAMD */
        && (signature >> 8 & 15) + (signature >> 20 & 255) == family;
}

uint32_t plp_cpu_features(void)
{
    enum { XMM_YMM = 0x06, XMM_YMM_ZMM = 0xe6 };        /* XCR0: SSE 1, AVX 2, opmask 5, zmm 6 and 7 */
    uint32_t a, b, c, d, found = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27))     /* OSXSAVE: xgetbv exists */
        return 0;
    const uint64_t saved = saved_registers();
    if ((saved & XMM_YMM) != XMM_YMM)
        return 0;
    if (c & 1u << 12) found |= PLP_CPU_FMA;
    if (c & 1u << 29) found |= PLP_CPU_F16C;
    if (is_amd_family(a, 25)) found |= PLP_CPU_ZEN4;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return found;
    const uint32_t last_subleaf = a;
    if (b & 1u << 5) found |= PLP_CPU_AVX2;
    const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    const int zmm = (saved & XMM_YMM_ZMM) == XMM_YMM_ZMM && (b & f_dq_bw_vl) == f_dq_bw_vl;
    if (zmm)                  found |= PLP_CPU_AVX512;
    if (zmm && (c & 1u << 11)) found |= PLP_CPU_AVX512_VNNI;
    if (zmm && (c & 1u << 1))  found |= PLP_CPU_AVX512_VBMI;

    if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        if (a & 1u << 4)          found |= PLP_CPU_AVX_VNNI;
        if (zmm && (a & 1u << 5)) found |= PLP_CPU_AVX512_BF16;
    }
    return found;
}

#elif defined __aarch64__ && defined __APPLE__

#include <sys/sysctl.h>

static uint32_t flag(const char *name, uint32_t bit)
{
    int value = 0;
    size_t n_bytes = sizeof value;
    return sysctlbyname(name, &value, &n_bytes, NULL, 0) == 0 && value ? bit : 0;
}

uint32_t plp_cpu_features(void)
{
    return PLP_CPU_NEON
         | flag("hw.optional.arm.FEAT_FP16",    PLP_CPU_FP16)
         | flag("hw.optional.arm.FEAT_DotProd", PLP_CPU_DOTPROD)
         | flag("hw.optional.arm.FEAT_I8MM",    PLP_CPU_I8MM)
         | flag("hw.optional.arm.FEAT_BF16",    PLP_CPU_BF16);
}

#elif defined __aarch64__ && defined __linux__

#include <sys/auxv.h>

uint32_t plp_cpu_features(void)
{
    /* The numbers are the kernel's ABI; the C library's headers may be older than the CPU. */
    enum { ASIMD = 1 << 1, ASIMDHP = 1 << 10, ASIMDDP = 1 << 20 };      /* AT_HWCAP */
    enum { I8MM = 1 << 13, BF16 = 1 << 14 };                            /* AT_HWCAP2 */
    const unsigned long one = getauxval(AT_HWCAP), two = getauxval(26 /* AT_HWCAP2 */);
    return (one & ASIMD   ? PLP_CPU_NEON    : 0)
         | (one & ASIMDHP ? PLP_CPU_FP16    : 0)
         | (one & ASIMDDP ? PLP_CPU_DOTPROD : 0)
         | (two & I8MM    ? PLP_CPU_I8MM    : 0)
         | (two & BF16    ? PLP_CPU_BF16    : 0);
}

#else

uint32_t plp_cpu_features(void) { return 0; }      /* the reference tier runs everywhere */

#endif

void plp_cpu_describe(uint32_t features, char *out, size_t n_bytes)
{
    static const struct { uint32_t bit; const char *name; } names[] = {
        { PLP_CPU_AVX2, "avx2" }, { PLP_CPU_FMA, "fma" }, { PLP_CPU_F16C, "f16c" },
        { PLP_CPU_AVX_VNNI, "avx_vnni" }, { PLP_CPU_AVX512, "avx512" },
        { PLP_CPU_AVX512_VNNI, "avx512_vnni" }, { PLP_CPU_AVX512_VBMI, "avx512_vbmi" },
        { PLP_CPU_AVX512_BF16, "avx512_bf16" }, { PLP_CPU_NEON, "neon" }, { PLP_CPU_FP16, "fp16" },
        { PLP_CPU_DOTPROD, "dotprod" }, { PLP_CPU_I8MM, "i8mm" }, { PLP_CPU_BF16, "bf16" },
    };
    size_t at = 0;

    if (n_bytes == 0)
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const size_t n = strlen(names[i].name);
        if (!(features & names[i].bit))
            continue;
        if (at + (at > 0) + n + 1 > n_bytes)        /* whole names only */
            break;
        if (at > 0)
            out[at++] = ' ';
        memcpy(out + at, names[i].name, n);
        at += n;
    }
    out[at] = '\0';
}
