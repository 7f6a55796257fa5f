/*
 * check_kernels.c - every kernel of every tier that this CPU has (attention: check_attention.c)
 *
 * Two questions. Is a tier bitwise equal to ref/? Asked of every line of kernels.def (a line without a
 * check_<name> here does not compile), on random, huge, tiny and zero inputs that end at a guard page.
 * And is ref/ right? Asked of double precision, within what the roundings of these very terms can add
 * up to. Besides, what the contract promises beyond equality of tiers: a token's result does not depend
 * on its neighbours (GEMM against GEMV), on how blocks are cut, or on what lies in slots not yet filled.
 */
#include "kernel_inputs.h"
#include "weight_blocks.h"

/* ---- weights ------------------------------------------------------------------------------ */

typedef struct quant { int32_t type; const char *name; uint32_t len, bytes; int form; } quant;
static const quant quants[] = {
#define QUANT(id, NAME, len, bytes, form) { id, #NAME, len, bytes, PLP_FORM_##form },
#include "format/quants.def"
#undef QUANT
};
enum { N_QUANTS = sizeof quants / sizeof quants[0] };

/* Blocks of random bytes whose scales are finite; `huge` ones near the format's limits, some of `sparse` 0. */
static void random_block(const quant *q, int kind, uint32_t i, uint8_t *p)
{
    const float size = kind == 1 ? 60000.0f : kind == 2 ? 1e-7f : kind == 3 && i % 3 == 0 ? 0.0f : 0.01f;
    const float d = check_uniform() * size, m = check_uniform() * size, f = value(kind, i);
    for (uint32_t j = 0; j < q->bytes; j++) p[j] = (uint8_t)check_random();
    if (put_scales(q->type, p, d, m)) return;
    switch (q->type) {
    case PLP_TYPE_F32:  memcpy(p, &f, 4); break;
    case PLP_TYPE_BF16: memcpy(p, (const char *)&f + 2, 2); break;
    case PLP_TYPE_F16:  put_half(p, d); break;
    case PLP_TYPE_MXFP4: p[0] = (uint8_t)(kind == 1 ? 140 + i % 4 : kind == 2 ? i % 5 : 118 + i % 4); break;
    default:
        for (bool sane = false; !sane; ) {      /* scales lie anywhere: draw until no value is wild */
            float values[256];
            for (uint32_t j = 0; j < q->bytes; j++) p[j] = (uint8_t)check_random();
            plp_type_get(q->type)->dequantize(p, values, q->len);
            sane = true;
            for (uint32_t j = 0; j < q->len; j++) sane = sane && fabsf(values[j]) < 1e9f;
        }
    }
}

static uint8_t *random_rows(const quant *q, uint32_t k, uint32_t n_rows, int kind, size_t *n_bytes)
{
    const uint32_t n_blocks = n_rows * (k / q->len);
    *n_bytes = (size_t)n_blocks * q->bytes;
    uint8_t *data = guarded(*n_bytes);
    for (uint32_t i = 0; i < n_blocks; i++) random_block(q, kind, i, data + (size_t)i * q->bytes);
    return data;
}

/* The types that are dequantised for lack of an integer form share one path and need fewer shapes. */
static bool is_plain(const quant *q) { return q->form != PLP_FORM_FLT || q->len == 1; }

/* y[n][rows] of one tier. Everything ends at a guard page; the activations are packed in two pieces. */
static void product(const plp_kernels *k, const plp_rows *w, uint32_t r0, uint32_t r1, const float *x, size_t ldx,
                    uint32_t n, float *y, size_t ldy, bool add)
{
    const size_t work_bytes = k->linear_work(n, w->k);
    void *work = guarded(work_bytes);
    if (plp_type_form(w->type) == PLP_FORM_FLT)
        k->linear_f(w, r0, r1, x, ldx, n, y, ldy, add, work);
    else {
        const size_t bytes = k->x_bytes(n, w->k);
        void *packed = guarded(bytes);
        const uint32_t half = n / 2 / PLP_TOKEN_STEP * PLP_TOKEN_STEP;
        if (half) k->x_pack(x, ldx, n, w->k, 0, half, packed);
        k->x_pack(x, ldx, n, w->k, half, n, packed);
        k->linear(w, r0, r1, packed, n, y, ldy, add, work);
        unguard(packed, bytes);
    }
    unguard(work, work_bytes);
}

static const uint32_t token_counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 37, 64, 130 };
static const uint32_t row_lengths[] = { 32, 64, 256, 512, 576, 768, 1536, 2048, 4352 };

static void equal_product(const plp_kernels *k, const quant *q, uint32_t len, uint32_t n, uint32_t n_rows, int kind)
{
    size_t bytes;
    uint8_t *data = random_rows(q, len, n_rows, kind, &bytes);
    const plp_rows w = { data, bytes / n_rows, q->type, len };
    const uint32_t cut = n_rows > 16 ? 16 : n_rows;
    float *x = guarded_floats((size_t)n * len, kind);
    float *want = guarded_floats((size_t)n * n_rows, 0), *got = guarded_floats((size_t)n * n_rows, 0);
    memcpy(got, want, sizeof *got * n * n_rows);
    for (int add = 0; add < 2; add++) {
        product(ref(), &w, 0, n_rows, x, len, n, want, n_rows, add);
        product(k, &w, 0, cut, x, len, n, got, n_rows, add);
        if (cut < n_rows) product(k, &w, cut, n_rows, x, len, n, got, n_rows, add);
        const long at = differs(got, want, (size_t)n * n_rows);
        CHECK(at < 0, "%s %s k=%u n=%u rows=%u %s add=%d: y[%ld] is %a, ref %a", k->tier, q->name, len, n, n_rows,
              kinds[kind], add, at, got[at], want[at]);
    }
    unguard_floats(x, (size_t)n * len);
    unguard_floats(want, (size_t)n * n_rows);
    unguard_floats(got, (size_t)n * n_rows);
    unguard(data, bytes);
}

static void equal_products(const plp_kernels *k, bool integer)
{
    for (int i = 0; i < N_QUANTS; i++) {
        if ((quants[i].form != PLP_FORM_FLT) != integer) continue;
        for (unsigned l = 0; l < sizeof row_lengths / sizeof *row_lengths; l++)
            for (unsigned c = 0; c < sizeof token_counts / sizeof *token_counts; c++) {
                const uint32_t len = row_lengths[l], n = token_counts[c];
                if (len % quants[i].len || (len > 2048 && n > 17) || (!is_plain(&quants[i]) && (len > 768 || n > 5))) continue;
                static const uint32_t rows[] = { 53, 48, 16, 7, 99 };
                equal_product(k, &quants[i], len, n, rows[(l + c) % 5], (int)(l + c) % N_KINDS);
            }
    }
    if (!integer)                           /* lengths that no block format has */
        for (int i = 0; i < N_QUANTS; i++)
            for (uint32_t len = 1; len < 40 && quants[i].len == 1; len += 3)
                equal_product(k, &quants[i], len, len % 7 + 1, 21, 0);
}

/* The quantised activation that the contract describes, in this test's own words. */
static double quantised(const float *block, int i)
{
    float amax = 0;
    for (int j = 0; j < 32; j++) amax = fmaxf(amax, fabsf(block[j]));
    if (amax < 0x1p-100f) return 0;
    return (double)(amax / 127.0f) * nearbyintf(block[i] * (127.0f / amax));
}

static void exact_products(const quant *q, uint32_t len, int kind)
{
    enum { ROWS = 19, N = 5 };
    const plp_type_info *info = plp_type_get(q->type);
    size_t bytes;
    uint8_t *data = random_rows(q, len, ROWS, kind, &bytes);
    const plp_rows w = { data, bytes / ROWS, q->type, len };
    float *x = guarded_floats((size_t)N * len, kind), *y = guarded_floats(N * ROWS, 0), *row = guarded_floats(len, 0);
    product(ref(), &w, 0, ROWS, x, len, N, y, ROWS, false);
    for (int r = 0; r < ROWS; r++) {
        info->dequantize(data + r * w.row_bytes, row, len);
        for (int t = 0; t < N; t++) {
            double want = 0, size = 0;
            for (uint32_t i = 0; i < len; i++) {
                const float *block = x + (size_t)t * len + i / 32 * 32;
                const double v = q->form == PLP_FORM_FLT ? x[(size_t)t * len + i] : quantised(block, (int)i % 32);
                want += row[i] * v;
                size += fabs(row[i] * v);
            }
            /* A term of MIN or MN2 is the difference of two parts that may each be larger than their sum. */
            const double allowed = (len / 16.0 + 16) * FLT_EPSILON * size * (q->form == PLP_FORM_MIN || q->form == PLP_FORM_MN2 ? 8 : 1) + 1e-37;
            CHECK(fabs(y[t * ROWS + r] - want) <= allowed, "ref %s k=%u %s row %d token %d: got %.9g, want %.9g +- %.2g",
                  q->name, len, kinds[kind], r, t, y[t * ROWS + r], want, allowed);
        }
    }
    unguard(data, bytes);
    unguard_floats(x, (size_t)N * len);
    unguard_floats(y, N * ROWS);
    unguard_floats(row, len);
}

static void check_exact_products(void)
{
    for (int i = 0; i < N_QUANTS; i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            exact_products(&quants[i], 256, kind);
            exact_products(&quants[i], 1536, kind);
        }
}

/* Each token alone, and in groups that start at every offset, as in one product of all of them. */
static void check_products_ignore_neighbours(void)
{
    enum { ROWS = 64, N = 37 };
    for (uint32_t tier = 0; tier < plp_kernels_count(); tier++)
        for (int i = 0; i < N_QUANTS; i++) {
            if (!is_plain(&quants[i])) continue;
            const plp_kernels *k = plp_kernels_at(tier);
            const uint32_t len = quants[i].len == 256 ? 768 : 576;
            size_t bytes;
            uint8_t *data = random_rows(&quants[i], len, ROWS, 0, &bytes);
            const plp_rows w = { data, bytes / ROWS, quants[i].type, len };
            float *x = guarded_floats((size_t)N * len, 4), *all = guarded_floats(N * ROWS, 0), *some = guarded_floats(N * ROWS, 0);
            product(k, &w, 0, ROWS, x, len, N, all, ROWS, false);
            for (uint32_t m = 1; m <= 16; m++)
                for (uint32_t t = 0; t + m <= N; t++) {
                    product(k, &w, 0, ROWS, x + (size_t)t * len, len, m, some, ROWS, false);
                    CHECK(differs(some, all + (size_t)t * ROWS, m * ROWS) < 0, "%s %s: %u tokens from %u differ from all %d",
                          k->tier, quants[i].name, m, t, N);
                }
            unguard(data, bytes);
            unguard_floats(x, (size_t)N * len);
            unguard_floats(all, N * ROWS);
            unguard_floats(some, N * ROWS);
        }
}

/* A row slice may start at any multiple of PLP_ROW_STEP, and touches no other row's result. */
static void check_product_slices(void)
{
    enum { ROWS = 85, LEN = 768 };
    for (uint32_t tier = 0; tier < plp_kernels_count(); tier++)
        for (int i = 0; i < N_QUANTS; i++)
            for (uint32_t n = 1; n < 20 && is_plain(&quants[i]); n += 3) {
                const plp_kernels *k = plp_kernels_at(tier);
                size_t bytes;
                uint8_t *data = random_rows(&quants[i], LEN, ROWS, 0, &bytes);
                const plp_rows w = { data, bytes / ROWS, quants[i].type, LEN };
                float *x = guarded_floats((size_t)n * LEN, 0), *all = guarded_floats(n * ROWS, 0), *some = guarded_floats(n * ROWS, 0);
                product(k, &w, 0, ROWS, x, LEN, n, all, ROWS, false);
                for (uint32_t r0 = 0; r0 < ROWS; r0 += PLP_ROW_STEP)
                    for (uint32_t r1 = r0 + PLP_ROW_STEP; r1 < ROWS + PLP_ROW_STEP; r1 += PLP_ROW_STEP) {
                        const uint32_t end = r1 < ROWS ? r1 : ROWS;
                        memset(some, 0x5a, sizeof *some * n * ROWS);
                        product(k, &w, r0, end, x, LEN, n, some, ROWS, false);
                        uint32_t wrong = 0;
                        for (uint32_t t = 0; t < n; t++)
                            for (uint32_t r = 0; r < ROWS; r++) {
                                const uint32_t want = r >= r0 && r < end ? plp_bits(all[t * ROWS + r]) : 0x5a5a5a5au;
                                wrong += plp_bits(some[t * ROWS + r]) != want;
                            }
                        CHECK(wrong == 0, "%s %s n=%u rows %u..%u: %u wrong", k->tier, quants[i].name, n, r0, end, wrong);
                    }
                unguard(data, bytes);
                unguard_floats(x, (size_t)n * LEN);
                unguard_floats(all, n * ROWS);
                unguard_floats(some, n * ROWS);
            }
}

/* Sums of bytes are added in 16 bits wherever a type's largest values leave room for it: each at its largest, all of one sign. */
static void check_largest_products(void)
{
    enum { ROWS = 17, LEN = 768 };
    static const uint8_t fills[] = { 0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0 };
    static const uint32_t counts[] = { 1, 4, 7, 64 };
    for (uint32_t tier = 1; tier < plp_kernels_count(); tier++)
        for (int i = 0; i < N_QUANTS; i++)
            for (unsigned f = 0; f < sizeof fills && quants[i].form != PLP_FORM_FLT; f++) {
                const plp_kernels *k = plp_kernels_at(tier);
                const quant *q = &quants[i];
                size_t bytes;
                uint8_t *data = random_rows(q, LEN, ROWS, 0, &bytes);
                memset(data, fills[f], bytes);
                for (uint8_t *p = data; p < data + bytes; p += q->bytes)
                    if (!put_scales(q->type, p, 0.5f, 0.25f)) *p = 120;     /* an exponent */
                const plp_rows w = { data, bytes / ROWS, q->type, LEN };
                for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
                    const uint32_t n = counts[c];
                    float *x = guarded_floats((size_t)n * LEN, 0), *want = guarded_floats(n * ROWS, 0), *got = guarded_floats(n * ROWS, 0);
                    for (uint32_t j = 0; j < n * LEN; j++) x[j] = (j / LEN + f) % 3 == 0 || ((j / LEN + f) % 3 == 1 && j % 2) ? -1 : 1;
                    product(ref(), &w, 0, ROWS, x, LEN, n, want, ROWS, false);
                    product(k, &w, 0, ROWS, x, LEN, n, got, ROWS, false);
                    const long at = differs(got, want, (size_t)n * ROWS);
                    CHECK(at < 0, "%s %s of bytes %02x, n=%u: y[%ld] is %a, ref %a", k->tier, q->name, fills[f], n, at, got[at], want[at]);
                    unguard_floats(x, (size_t)n * LEN);
                    unguard_floats(want, n * ROWS);
                    unguard_floats(got, n * ROWS);
                }
                unguard(data, bytes);
            }
}

/* ---- one vector at a time ----------------------------------------------------------------- */

static const uint32_t lengths[] = { 1, 2, 15, 16, 17, 31, 32, 48, 100, 576, 2048 };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

typedef struct vectors { float *a, *b, *c, *want, *got; uint32_t n; } vectors;

static vectors vectors_of(uint32_t n, int kind)
{
    const vectors v = { guarded_floats(n, kind), guarded_floats(n, 0), guarded_floats(n, 4),
                        guarded_floats(n, 0), guarded_floats(n, 0), n };
    memcpy(v.got, v.want, n * sizeof(float));
    return v;
}
static void vectors_free(vectors v)
{
    unguard_floats(v.a, v.n), unguard_floats(v.b, v.n), unguard_floats(v.c, v.n);
    unguard_floats(v.want, v.n), unguard_floats(v.got, v.n);
}

#define CHECK_VECTORS(what, ...)                                                                  \
    do {                                                                                          \
        const long at = differs(v.got, v.want, v.n);                                              \
        CHECK(at < 0, "%s " what " n=%u %s: [%ld] is %a, ref %a", k->tier, ##__VA_ARGS__, v.n,    \
              kinds[kind], at, v.got[at], v.want[at]);                                            \
    } while (0)
#define EACH_VECTOR(...)                                                                          \
    for (int l = 0; l < N_LENGTHS; l++)                                                           \
        for (int kind = 0; kind < N_KINDS; kind++) {                                              \
            vectors v = vectors_of(lengths[l], kind);                                             \
            __VA_ARGS__                                                                           \
            vectors_free(v);                                                                      \
        }

static void check_rmsnorm(const plp_kernels *k)
{
    EACH_VECTOR(
        for (int with = 0; with < 2; with++) {
            ref()->rmsnorm(v.want, v.a, with ? v.b : NULL, v.n, 1e-5f);
            k->rmsnorm(v.got, v.a, with ? v.b : NULL, v.n, 1e-5f);
            CHECK_VECTORS("rmsnorm weight=%d", with);
        }
    )
    for (int kind = 0; kind < N_KINDS; kind++) {
        vectors v = vectors_of(576, kind);
        k->rmsnorm(v.got, v.a, v.b, v.n, 1e-5f);
        double sum = 0;
        for (uint32_t i = 0; i < v.n; i++) sum += (double)v.a[i] * v.a[i];
        for (uint32_t i = 0; i < v.n; i++) {
            const double want = v.a[i] / sqrt(sum / v.n + 1e-5f) * v.b[i];
            CHECK(fabs(v.got[i] - want) <= 40 * FLT_EPSILON * fabs(want) + 1e-44, "%s rmsnorm %s [%u] is %.9g, want %.9g",
                  k->tier, kinds[kind], i, v.got[i], want);
        }
        memcpy(v.want, v.got, v.n * sizeof(float));
        k->rmsnorm(v.a, v.a, v.b, v.n, 1e-5f);
        CHECK(differs(v.a, v.want, v.n) < 0, "%s rmsnorm in place", k->tier);
        vectors_free(v);
    }
}

static void check_layernorm(const plp_kernels *k)
{
    EACH_VECTOR(
        for (int with = 0; with < 4; with++) {
            ref()->layernorm(v.want, v.a, with & 1 ? v.b : NULL, with & 2 ? v.c : NULL, v.n, 1e-5f);
            k->layernorm(v.got, v.a, with & 1 ? v.b : NULL, with & 2 ? v.c : NULL, v.n, 1e-5f);
            CHECK_VECTORS("layernorm weight, bias=%d", with);
        }
    )
    vectors v = vectors_of(100, 0);
    k->layernorm(v.got, v.a, v.b, v.c, v.n, 1e-5f);
    double mean = 0, var = 0;
    for (uint32_t i = 0; i < v.n; i++) mean += v.a[i] / (double)v.n;
    for (uint32_t i = 0; i < v.n; i++) var += (v.a[i] - mean) * (v.a[i] - mean) / v.n;
    for (uint32_t i = 0; i < v.n; i++) {
        const double want = (v.a[i] - mean) / sqrt(var + 1e-5f) * v.b[i] + v.c[i];
        CHECK(fabs(v.got[i] - want) < 1e-5 + 1e-6 * fabs(want), "%s layernorm [%u] is %.9g, want %.9g", k->tier, i, v.got[i], want);
    }
    memcpy(v.want, v.got, v.n * sizeof(float));
    k->layernorm(v.a, v.a, v.b, v.c, v.n, 1e-5f);
    CHECK(differs(v.a, v.want, v.n) < 0, "%s layernorm in place", k->tier);
    vectors_free(v);
}

static void check_rope(const plp_kernels *k)
{
    static const struct { uint32_t n_heads, head_dim, n_rot; } shapes[] = {
        { 1, 64, 64 }, { 9, 64, 64 }, { 3, 128, 128 }, { 2, 80, 32 }, { 5, 96, 96 }, { 1, 16, 16 }, { 4, 48, 20 }, { 2, 256, 2 },
    };
    for (unsigned s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int kind = 0; kind < 2; kind++) {
            const uint32_t n = shapes[s].n_heads * shapes[s].head_dim, n_rot = shapes[s].n_rot, dim = shapes[s].head_dim;
            float *got = guarded_floats(n, 0), *want = guarded_floats(n, 0), *was = guarded_floats(n, 0), *cs = guarded_floats(n_rot, 0);
            memcpy(got, was, n * sizeof *got);
            memcpy(want, was, n * sizeof *got);
            for (uint32_t i = 0; i < n_rot; i += 2) {
                cs[i] = cosf((float)(i + s) * 0.37f);
                cs[i + 1] = sinf((float)(i + s) * 0.37f);
            }
            ref()->rope(want, shapes[s].n_heads, dim, n_rot, cs, kind);
            k->rope(got, shapes[s].n_heads, dim, n_rot, cs, kind);
            CHECK(differs(got, want, n) < 0, "%s rope shape %u kind %d", k->tier, s, kind);
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t d = i % dim, half = n_rot / 2;
                if (d >= n_rot) {
                    CHECK(got[i] == was[i], "%s rope touched %u beyond n_rot", k->tier, d);
                    continue;
                }
                const uint32_t pair = kind == PLP_ROPE_NORM ? d / 2 : d % half;
                const bool second = kind == PLP_ROPE_NORM ? d % 2 : d >= half;
                const uint32_t a = i - d + (kind == PLP_ROPE_NORM ? 2 * pair : pair), b = a + (kind == PLP_ROPE_NORM ? 1 : half);
                const double c = cs[2 * pair], z = cs[2 * pair + 1];
                const double exact = second ? was[a] * z + was[b] * c : was[a] * c - was[b] * z;
                CHECK(fabs(got[i] - exact) < 4 * FLT_EPSILON, "%s rope kind %d [%u] is %.9g, want %.9g", k->tier, kind, i, got[i], exact);
            }
            unguard_floats(got, n), unguard_floats(want, n), unguard_floats(was, n), unguard_floats(cs, n_rot);
        }
}

static double exact_act(double g, int kind)
{
    switch (kind) {
    case PLP_ACT_SILU:     return g / (1 + exp(-g));
    case PLP_ACT_GELU:     return 0.5 * g * (1 + tanh(0.7978845608028654 * g * (1 + 0.044715 * g * g)));
    case PLP_ACT_GELU_ERF: return 0.5 * g * (1 + erf(g * 0.7071067811865476));
    case PLP_ACT_SIGMOID:  return 1 / (1 + exp(-g));
    default:               return g > 0 ? g : 0;
    }
}

static void check_glu(const plp_kernels *k)
{
    for (int act = PLP_ACT_SILU; act <= PLP_ACT_SIGMOID; act++) {
        EACH_VECTOR(
            for (int with = 0; with < 2; with++) {
                ref()->glu(v.want, v.a, with ? v.b : NULL, v.n, act);
                k->glu(v.got, v.a, with ? v.b : NULL, v.n, act);
                CHECK_VECTORS("glu act=%d up=%d", act, with);
            }
        )
        enum { N = 4001 };
        float *x = guarded_floats(N, 0), *y = guarded_floats(N, 0), *z = guarded_floats(N, 0);
        for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) * 0.05f;
        x[0] = -INFINITY, x[1] = -1e30f, x[N - 1] = 1e30f, x[2] = -0.0f;
        for (int i = 0; i < N; i++) z[i] = x[i];
        ref()->glu(z, z, NULL, N - 1, act);                         /* in place */
        k->glu(y, x, NULL, N - 1, act);
        for (int i = 1; i < N - 1; i++) {
            const double want = exact_act(x[i], act);
            CHECK(plp_bits(y[i]) == plp_bits(z[i]), "%s act %d of %g: %a, ref %a", k->tier, act, x[i], y[i], z[i]);
            CHECK(fabs(y[i] - want) <= 1e-6 * (act == PLP_ACT_SIGMOID ? 1 : fabs(x[i] < -6 ? fmin(1, fabs(x[i])) : x[i])) + 1e-37 || fabs(x[i]) > 1e20,
                  "%s act %d of %g: %.9g, want %.9g", k->tier, act, x[i], y[i], want);
        }
        unguard_floats(x, N), unguard_floats(y, N), unguard_floats(z, N);
    }
}

static void check_glu_limited(const plp_kernels *k)
{
    EACH_VECTOR(
        ref()->glu_limited(v.want, v.a, v.b, v.n);
        k->glu_limited(v.got, v.a, v.b, v.n);
        CHECK_VECTORS("glu_limited");
    )
    enum { N = 401 };
    float *gate = guarded_floats(N, 0), *up = guarded_floats(N, 0), *y = guarded_floats(N, 0);
    for (int i = 0; i < N; i++)                 /* both beyond their limits, at the ends */
        gate[i] = (float)(i - N / 2) * 0.05f, up[i] = (float)(N / 2 - i) * 0.07f;
    k->glu_limited(y, gate, up, N);
    for (int i = 0; i < N; i++) {
        const double g = fmin(gate[i], 7), u = fmax(fmin(up[i], 7), -7), want = g / (1 + exp(-1.702 * g)) * (1 + u);
        CHECK(fabs(y[i] - want) <= 1e-6 * (fabs(g) * fabs(1 + u) + 1e-6), "%s glu_limited of %g, %g: %.9g, want %.9g", k->tier,
              gate[i], up[i], y[i], want);
    }
    unguard_floats(gate, N), unguard_floats(up, N), unguard_floats(y, N);
}

static void check_add(const plp_kernels *k)
{
    EACH_VECTOR(
        for (uint32_t i = 0; i < v.n; i++) v.want[i] = v.got[i] + v.a[i];
        k->add(v.got, v.a, v.n);
        CHECK_VECTORS("add");
    )
}

static void check_scale(const plp_kernels *k)
{
    EACH_VECTOR(
        for (uint32_t i = 0; i < v.n; i++) v.want[i] = (v.got[i] = v.a[i]) * -1.37f;
        k->scale(v.got, -1.37f, v.n);
        CHECK_VECTORS("scale");
    )
}

/* Tiers, and one step in double: the state's own roundings are a few of its size, a sum's n of its terms. */
static void check_delta_rule(const plp_kernels *k)
{
    static const uint32_t lengths[] = { 16, 48, 64, 128, 144, 256 };
    for (uint32_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const uint32_t n = lengths[l];
            const float decay = 0.97f, beta = 0.6f;
            float *got = guarded_floats(n * n, kind), *want = guarded_floats(n * n, 0), *was = guarded_floats(n * n, 0);
            float *q = guarded_floats(n, 0), *key = guarded_floats(n, 0), *v = guarded_floats(n, kind), *y = guarded_floats(n, 0), *z = guarded_floats(n, 0);
            memcpy(want, got, n * n * sizeof *got);
            for (int token = 0; token < 2; token++) {
                memcpy(was, want, n * n * sizeof *was);
                ref()->delta_rule(want, q, key, v, decay, beta, z, n);
                k->delta_rule(got, q, key, v, decay, beta, y, n);
            }
            CHECK(!memcmp(got, want, n * n * sizeof *got) && !memcmp(y, z, n * sizeof *y), "%s delta_rule n=%u kind=%d", k->tier, n, kind);
            for (uint32_t j = 0; j < n; j++) {
                double m = 0, size = fabs(v[j]), out = 0, out_size = 0;
                for (uint32_t i = 0; i < n; i++) {
                    m += (double)key[i] * was[i * n + j] * decay;
                    size += fabs((double)key[i] * was[i * n + j]);
                }
                for (uint32_t i = 0; i < n; i++) {
                    const double s = was[i * n + j] * (double)decay + key[i] * (v[j] - m) * beta;
                    const double bound = (n + 4) * FLT_EPSILON * (fabs(was[i * n + j]) + fabs(key[i]) * size) + FLT_MIN;
                    CHECK(fabs(got[i * n + j] - s) <= bound, "%s delta_rule n=%u state[%u][%u] is %g, want %g", k->tier, n, i, j, got[i * n + j], s);
                    out += q[i] * s;
                    out_size += fabs(q[i]) * (fabs(s) + (n + 4) * (fabs(was[i * n + j]) + fabs(key[i]) * size));
                }
                CHECK(fabs(y[j] - out) <= (n + 4) * FLT_EPSILON * out_size + FLT_MIN, "%s delta_rule n=%u y[%u] is %g, want %g", k->tier, n, j, y[j], out);
            }
            unguard_floats(got, n * n), unguard_floats(want, n * n), unguard_floats(was, n * n);
            unguard_floats(q, n), unguard_floats(key, n), unguard_floats(v, n), unguard_floats(y, n), unguard_floats(z, n);
        }
}

static void check_softcap(const plp_kernels *k)
{
    EACH_VECTOR(
        for (uint32_t i = 0; i < v.n; i++) v.want[i] = v.got[i] = v.a[i];
        ref()->softcap(v.want, 30.0f, v.n);
        k->softcap(v.got, 30.0f, v.n);
        CHECK_VECTORS("softcap");
    )
    enum { N = 4001 };
    float *y = guarded_floats(N, 0);
    for (int i = 0; i < N; i++) y[i] = (float)(i - N / 2) * 0.05f;
    y[0] = -INFINITY, y[1] = INFINITY, y[2] = NAN;
    k->softcap(y, 30.0f, N);
    CHECK(y[0] == -30 && y[1] == 30 && isnan(y[2]), "%s softcap of infinities and NaN: %g, %g, %g", k->tier, y[0], y[1], y[2]);
    for (int i = 3; i < N; i++) {
        const double x = (double)((float)(i - N / 2) * 0.05f), want = 30 * tanh(x / 30);
        CHECK(fabs(y[i] - want) <= 4 * FLT_EPSILON * fabs(want), "%s softcap of %g: %.9g, want %.9g", k->tier, x, y[i], want);
    }
    unguard_floats(y, N);
}

/* The scalar functions that every tier repeats. */
static void check_math(void)
{
    double worst_exp = 0, worst_tanh = 0, worst_erf = 0;
    for (int i = -870000; i <= 883000; i += 7) {
        const float x = (float)i * 1e-4f;
        worst_exp = fmax(worst_exp, fabs(plp_exp(x) - exp(x)) / (exp(x) * FLT_EPSILON));
    }
    for (int i = -100000; i <= 100000; i += 3) {
        const float x = (float)i * 1e-4f;
        worst_tanh = fmax(worst_tanh, fabs(plp_tanh(x) - tanh(x)) / (fabs(tanh(x)) + 1e-30) / FLT_EPSILON);
        worst_erf = fmax(worst_erf, fabs(plp_erf(x) - erf(x)) / FLT_EPSILON);
    }
    CHECK(worst_exp < 1.0, "exp is %.2f epsilon off", worst_exp);
    CHECK(worst_tanh < 2.0, "tanh is %.2f epsilon off", worst_tanh);
    CHECK(worst_erf < 2.0, "erf is %.2f epsilon off", worst_erf);
    CHECK(plp_exp(0) == 1 && plp_exp(-0.0f) == 1, "exp(0) is %a", plp_exp(0));
    CHECK(plp_exp(-INFINITY) == 0 && plp_exp(-1e30f) == 0 && plp_exp(-89) == 0, "exp of very negative numbers");
    CHECK(plp_exp(INFINITY) == INFINITY && plp_exp(90) == INFINITY, "exp of large numbers");
    CHECK(plp_tanh(0) == 0 && plp_tanh(INFINITY) == 1 && plp_tanh(-1e30f) == -1, "tanh at its ends");
    CHECK(plp_erf(0) == 0 && plp_erf(INFINITY) == 1 && plp_erf(-9) == -1, "erf at its ends");
    for (uint32_t h = 0; h < 65536; h++) {
        const float a = plp_half((uint16_t)h), b = plp_f16_to_f32((uint16_t)h);
        CHECK(plp_bits(a) == plp_bits(b) || (isnan(a) && isnan(b)), "half %04x is %a, want %a", h, a, b);
    }
}

/* ---- the list ----------------------------------------------------------------------------- */

static void check_linear(const plp_kernels *k)   { equal_products(k, true); }
static void check_linear_f(const plp_kernels *k) { equal_products(k, false); }

/* A caller allocates once, for its largest n and k. (That they suffice: product() ends them at guard pages.) */
static void sizes_grow(const plp_kernels *k, size_t (*bytes)(uint32_t n, uint32_t k), const char *name)
{
    for (uint32_t n = 1; n < 40; n++)
        for (uint32_t len = 32; len < 4096; len += 32)
            CHECK(bytes(n, len) <= bytes(n + 1, len) && bytes(n, len) <= bytes(n, len + 32) && bytes(n, len) % 64 == 0,
                  "%s %s shrinks after n=%u k=%u, or is no multiple of 64", k->tier, name, n, len);
}
static void check_x_bytes(const plp_kernels *k)     { sizes_grow(k, k->x_bytes, "x_bytes"); }
static void check_linear_work(const plp_kernels *k) { sizes_grow(k, k->linear_work, "linear_work"); }

/* Without a walk of its own: check_linear packs in two pieces. The rest is in check_attention.c. */
#define check_x_pack      elsewhere
#define check_kv_put      elsewhere
#define check_attn_f16    elsewhere
#define check_attn_run_work elsewhere
#define check_attn_f16_run elsewhere
#define check_attn_merge  elsewhere
#define check_attn_finish elsewhere
#define check_kv_seal_q8  elsewhere
#define check_kv_seal_q4  elsewhere
#define check_attn_q8     elsewhere
#define check_attn_q4     elsewhere

static void check_every_kernel(void)
{
    static const kernel_check all[] = {
#define KERNEL(result, name, args) { #name, check_##name },
#include "kernels/kernels.def"
#undef KERNEL
    };
    for (uint32_t tier = 0; tier < plp_kernels_count(); tier++) {
        const plp_kernels *k = plp_kernels_at(tier);
#define KERNEL(result, name, args) CHECK(k->name != NULL, "%s has no " #name, k->tier);
#include "kernels/kernels.def"
#undef KERNEL
    }
    check_each(all, sizeof all / sizeof *all);
}

static void check_dispatch(void)
{
    const plp_kernels *k = NULL;
    plp_error err = { 0 };
    unsetenv("PLP_CPU");
    CHECK(plp_kernels_get(&k, &err) == PLP_OK && k == plp_kernels_at(plp_kernels_count() - 1), "the default is the best tier");
    for (uint32_t i = 0; i < plp_kernels_count(); i++) {
        setenv("PLP_CPU", plp_kernels_at(i)->tier, 1);
        CHECK(plp_kernels_get(&k, &err) == PLP_OK && k == plp_kernels_at(i), "PLP_CPU=%s", plp_kernels_at(i)->tier);
    }
    static const char *const known[] = { "avx2", "avxvnni", "avx512", "neon", "dotprod", "i8mm" };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {     /* what is not checked here is named */
        bool here = false;
        for (uint32_t t = 0; t < plp_kernels_count(); t++)
            here |= !strcmp(known[i], plp_kernels_at(t)->tier);
        setenv("PLP_CPU", known[i], 1);
        if (here)
            continue;
        CHECK(plp_kernels_get(&k, &err) == PLP_E_UNSUPPORTED && strstr(err.msg, known[i]), "%s: %s", known[i], err.msg);
        if (!strstr(err.msg, "no such tier"))
            printf("skipped: %s\n", err.msg);
    }
    setenv("PLP_CPU", "pdp11", 1);
    CHECK(plp_kernels_get(&k, &err) == PLP_E_UNSUPPORTED && strstr(err.msg, "ref") && strstr(err.msg, "pdp11"), "%s", err.msg);
    CHECK(plp_kernels_at(plp_kernels_count()) == NULL, "a tier past the last");
    unsetenv("PLP_CPU");
}

int main(void)
{
    RUN(check_dispatch);
    RUN(check_math);
    RUN(check_exact_products);
    RUN(check_every_kernel);
    RUN(check_products_ignore_neighbours);
    RUN(check_product_slices);
    RUN(check_largest_products);
    return check_done();
}
