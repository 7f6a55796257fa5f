/*
 * kernels/kernels.c - which tiers exist, and which one runs
 *
 * A tier is a set of CPU features and a function that overwrites the table entries it does better than the
 * tiers before it. The table of each tier is filled once per process, on first use.
 *
 * Threads  any
 */
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"
#include "kernels/sealed.h"
#if defined __aarch64__
#include "kernels/arm/arm.h"
#elif defined __x86_64__
#include "kernels/x86/x86.h"
#endif

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct plp_tier {
    const char *name;
    uint32_t    features;           /* PLP_CPU_*, all needed */
    void      (*fill)(plp_kernels *k);
} plp_tier;

static void fill_ref(plp_kernels *k)
{
    plp_fill_ref_linear(k);
    plp_fill_ref_vector(k);
    plp_fill_ref_attention(k);
    plp_fill_ref_sealed(k);
}

/* Weakest first. A later tier of the same architecture has every feature of the earlier ones, except that AVX-512 comes without
 * AVX-VNNI, too: then that tier is passed over. */
static const plp_tier tiers[] = {
    { "ref", 0, fill_ref },
#if defined __aarch64__
    { "neon",    PLP_CPU_NEON, plp_fill_neon },
    { "dotprod", PLP_CPU_NEON | PLP_CPU_FP16 | PLP_CPU_DOTPROD, plp_fill_dotprod },
    { "i8mm",    PLP_CPU_NEON | PLP_CPU_FP16 | PLP_CPU_DOTPROD | PLP_CPU_I8MM, plp_fill_i8mm },
#elif defined __x86_64__
    { "avx2",    PLP_NEEDS_AVX2, plp_fill_avx2 },
#if PLP_AVXVNNI
    { "avxvnni", PLP_NEEDS_AVXVNNI, plp_fill_avxvnni },
#endif
    { "avx512",  PLP_NEEDS_AVX512, plp_fill_avx512 },
#endif
};
enum { N_TIERS = sizeof tiers / sizeof tiers[0] };

static plp_kernels tables[N_TIERS];
static uint32_t    n_runnable;                  /* of `tiers`, in order; set before `state` becomes READY */
static uint32_t    features;
static atomic_int  state;
enum { EMPTY, FILLING, READY };

/* The runnable tiers' tables, each on top of the one before. Whoever comes second waits for the
 * microseconds that the first needs. */
static void prepare(void)
{
    int expected = EMPTY;
    if (atomic_load_explicit(&state, memory_order_acquire) == READY) return;
    if (!atomic_compare_exchange_strong(&state, &expected, FILLING)) {
        while (atomic_load_explicit(&state, memory_order_acquire) != READY) { }
        return;
    }
    plp_kernels k = { 0 };
    features = plp_cpu_features();
    for (uint32_t i = 0; i < N_TIERS; i++) {
        if ((features & tiers[i].features) != tiers[i].features) continue;
        k.tier = tiers[i].name;
        tiers[i].fill(&k);
        tables[n_runnable++] = k;
    }
    atomic_store_explicit(&state, READY, memory_order_release);
}

uint32_t plp_kernels_count(void)
{
    prepare();
    return n_runnable;
}

const plp_kernels *plp_kernels_at(uint32_t i)
{
    prepare();
    return i < n_runnable ? &tables[i] : NULL;
}

plp_status plp_kernels_get(const plp_kernels **out, plp_error *err)
{
    const char *wanted = getenv("PLP_CPU");
    char        text[240] = "";

    prepare();
    if (!wanted || !*wanted) {
        *out = &tables[n_runnable - 1];
        return PLP_OK;
    }
    for (uint32_t i = 0; i < n_runnable; i++)
        if (!strcmp(tables[i].tier, wanted)) {
            *out = &tables[i];
            return PLP_OK;
        }
    for (uint32_t i = 0; i < N_TIERS; i++)
        if (!strcmp(tiers[i].name, wanted)) {
            plp_cpu_describe(tiers[i].features & ~features, text, sizeof text);
            return plp_fail(err, PLP_E_UNSUPPORTED, "PLP_CPU=%s: this CPU lacks %s", wanted, text);
        }
    for (uint32_t i = 0; i < N_TIERS; i++) {
        if (i > 0) strncat(text, ", ", sizeof text - strlen(text) - 1);
        strncat(text, tiers[i].name, sizeof text - strlen(text) - 1);
    }
    return plp_fail(err, PLP_E_UNSUPPORTED, "PLP_CPU=%.32s: no such tier; this build has %s", wanted, text);
}

size_t plp_tile_bytes(int32_t kv_format, uint32_t head_dim, uint32_t block_len)
{
    switch (kv_format) {
    case PLP_KV_F16:
        return (size_t)2 * head_dim * block_len * sizeof(uint16_t);
    case PLP_KV_Q8:
        return block_len == PLP_SEALED_LEN ? plp_q8_bytes(head_dim) : 0;
    case PLP_KV_Q4:
        return block_len == PLP_SEALED_LEN ? plp_q4_bytes(head_dim) : 0;
    }
    return 0;
}
