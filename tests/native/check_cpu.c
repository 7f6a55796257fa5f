/*
 * check_cpu.c - the features found are consistent, and agree with a second opinion
 */
#include "base/cpu.h"
#include "check.h"

#include <stdbool.h>

static void describing(void)
{
    char all[240], cut[16];
    plp_cpu_describe(~0u, all, sizeof all);
    CHECK(strstr(all, "avx2 fma") == all, "%s", all);
    CHECK(strstr(all, "dotprod i8mm bf16") != NULL, "%s", all);

    memset(cut, 'x', sizeof cut);
    plp_cpu_describe(~0u, cut, 10);
    CHECK(strcmp(cut, "avx2 fma") == 0 && cut[10] == 'x', "whole names only, inside the buffer: %.10s", cut);
    plp_cpu_describe(PLP_CPU_AVX2, cut, 4);
    CHECK(cut[0] == '\0', "a name that does not fit is left out: %s", cut);
    plp_cpu_describe(0, cut, 1);
    CHECK(cut[0] == '\0', "nothing found is an empty string");
}

static void consistent(void)
{
    const uint32_t f = plp_cpu_features();
    const uint32_t on_avx512 = PLP_CPU_AVX512_VNNI | PLP_CPU_AVX512_VBMI | PLP_CPU_AVX512_BF16;
    CHECK(!(f & on_avx512) || (f & PLP_CPU_AVX512), "%x", f);
    CHECK(!(f & 0xffff) || !(f >> 16), "features of two architectures: %x", f);
    CHECK(plp_cpu_features() == f, "the answer changed");
#if defined __aarch64__
    CHECK(f & PLP_CPU_NEON, "every aarch64 system has NEON: %x", f);
#endif
}

/* A second opinion: the compiler's own run-time detection on x86, /proc/cpuinfo on ARM. */
static void as_others_say(void)
{
    const uint32_t f = plp_cpu_features();
    (void)f;                    /* there is nobody to ask on macOS */
#if defined __x86_64__
#define SAME(bit, name) CHECK(!!(f & (bit)) == !!__builtin_cpu_supports(name), name ": found %d", !!(f & (bit)))
    SAME(PLP_CPU_AVX2, "avx2");
    SAME(PLP_CPU_FMA, "fma");
    SAME(PLP_CPU_AVX512, "avx512vl");
    SAME(PLP_CPU_AVX512_VNNI, "avx512vnni");
    SAME(PLP_CPU_AVX512_VBMI, "avx512vbmi");
#elif defined __aarch64__ && defined __linux__
    static const struct { const char *word; uint32_t bit; } known[] = {
        { " asimd ", PLP_CPU_NEON }, { " asimdhp ", PLP_CPU_FP16 }, { " asimddp ", PLP_CPU_DOTPROD },
        { " i8mm ", PLP_CPU_I8MM }, { " bf16 ", PLP_CPU_BF16 },
    };
    static char line[8192];
    bool seen = false;
    FILE *in = fopen("/proc/cpuinfo", "r");
    while (in && !seen && fgets(line, sizeof line, in))
        seen = strncmp(line, "Features", 8) == 0;
    if (in)
        fclose(in);
    if (!seen) {                /* an emulator may show its host's file */
        printf("skipped: /proc/cpuinfo describes another architecture\n");
        return;
    }
    line[strcspn(line, "\n")] = ' ';
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        CHECK(!!(f & known[i].bit) == !!strstr(line, known[i].word), "%s: found %d", known[i].word, !!(f & known[i].bit));
#endif
}

int main(void)
{
    char words[240];
    plp_cpu_describe(plp_cpu_features(), words, sizeof words);
    printf("features: %s\n", words);
    RUN(describing);
    RUN(consistent);
    RUN(as_others_say);
    return check_done();
}
