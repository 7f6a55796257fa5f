/*
 * kernels/ref/linear.c - weight rows times activations: plain C, the form that the fast tiers are held to
 *
 * Activations  [n][k/32] of x_block. One row of weights at a time is expanded into `work`, then used for
 *              all tokens.
 * work         int8 [k] | f32 [k/32] scales | f32 [k/32] minimums (MIN, MN2) or second scales (SUB)
 *              | f32 [k/32] second minimums (MN2); linear_f: f32 [k], the row dequantised
 * Threads      pure functions
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/math.h"
#include "base/bytes.h"

/* 32 activations x[i] ~ xs * q[i]. */
typedef struct x_block {
    float  xs;
    float  xm;              /* xs * sum(q), what a minimum is multiplied with */
    float  xh[2];           /* the same of each half */
    int8_t q[32];
} x_block;

static size_t lines(size_t n_bytes) { return (n_bytes + 63) / 64 * 64; }

static size_t x_bytes(uint32_t n, uint32_t k) { return lines((size_t)n * (k / 32) * sizeof(x_block)); }

static void quantise(const float *x, x_block *out)
{
    float amax = 0;
    for (int i = 0; i < 32; i++) {
        const float a = __builtin_fabsf(x[i]);
        amax = a > amax ? a : amax;
    }
    const bool zero = amax < PLP_X_ZERO;
    const float inverse = zero ? 0 : 127.0f / amax;
    uint32_t sum[2] = { 0, 0 };             /* that of values which are infinite or NaN wraps, as in vector registers */
    for (int i = 0; i < 32; i++) {
        const int32_t q = plp_round_int(x[i] * inverse);
        out->q[i] = (int8_t)q;
        sum[i / 16] += (uint32_t)q;
    }
    out->xs = zero ? 0 : amax / 127.0f;
    out->xm = out->xs * (float)(int32_t)(sum[0] + sum[1]);
    for (int h = 0; h < 2; h++) out->xh[h] = out->xs * (float)(int32_t)sum[h];
}

static void x_pack(const float *x, size_t ldx, uint32_t n, uint32_t k, uint32_t t0, uint32_t t1, void *out)
{
    x_block *o = (x_block *)out + (size_t)t0 * (k / 32);
    for (uint32_t t = t0; t < t1 && t < n; t++)
        for (uint32_t b = 0; b < k / 32; b++) quantise(x + t * ldx + b * 32, o++);
}

/* ---- one row of a file's blocks -> int8 and scales ---------------------------------------- */

typedef struct row {
    int8_t *w;              /* [k], the offset of SYM and SUB taken off */
    float  *s;              /* [k/32] block scales; SUB: of each first half */
    float  *m;              /* [k/32] MIN: minimums; SUB: scales of each second half; MN2: minimums of the first */
    float  *m2;             /* [k/32] MN2: minimums of each second half */
} row;

/* 16 bytes of nibbles: low ones are values 0..15, high ones 16..31; bit i of `fifth` goes on top of value i. */
static void nibbles(const uint8_t *p, uint32_t fifth, int off, int8_t *w)
{
    for (int i = 0; i < 16; i++) {
        w[i] = (int8_t)(((p[i] & 15) | (fifth >> i & 1) << 4) - off);
        w[i + 16] = (int8_t)((p[i] >> 4 | (fifth >> (i + 16) & 1) << 4) - off);
    }
}

static void looked_up(const uint8_t *p, const int8_t *values, int8_t *w)
{
    for (int i = 0; i < 16; i++) {
        w[i] = values[p[i] & 15];
        w[i + 16] = values[p[i] >> 4];
    }
}

/* Q4_K, and Q5_K, which has fifth bits before the nibbles. */
static void expand_q45_k(const uint8_t *p, bool five, row r)
{
    const float d = plp_half(plp_u16_at(p)), dmin = plp_half(plp_u16_at(p + 2));
    const uint8_t *packed = p + 4;          /* eight 6-bit scales and minimums in 12 bytes */
    const uint8_t *low = p + (five ? 48 : 16), *high = p + 16;
    for (int b = 0; b < 8; b++) {
        int sc, m;
        if (b < 4) {
            sc = packed[b] & 63;
            m = packed[b + 4] & 63;
        } else {
            sc = (packed[b + 4] & 15) | (packed[b - 4] >> 6) << 4;
            m = (packed[b + 4] >> 4) | (packed[b] >> 6) << 4;
        }
        r.s[b] = d * (float)sc;
        r.m[b] = -(dmin * (float)m);
        for (int i = 0; i < 32; i++)
            r.w[32 * b + i] = (int8_t)((low[b / 2 * 32 + i] >> b % 2 * 4 & 15) | (five ? high[i] >> b & 1 : 0) << 4);
    }
}

static void expand_q6_k(const uint8_t *p, row r)
{
    const float d = plp_half(plp_u16_at(p + 208));
    const int8_t *sc = (const int8_t *)p + 192;
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, j = i % 128;
        const int low = p[half * 64 + j % 64] >> (j / 64 * 4) & 15;
        const int high = p[128 + half * 32 + j % 32] >> (j / 32 * 2) & 3;
        r.w[i] = (int8_t)((low | high << 4) - 32);
    }
    for (int b = 0; b < 8; b++) {
        r.s[b] = d * (float)sc[2 * b];
        r.m[b] = d * (float)sc[2 * b + 1];
    }
}

/* The integers are scale times value: both are small. */
static void expand_q2_k(const uint8_t *p, row r)
{
    const float d = plp_half(plp_u16_at(p + 80)), dmin = plp_half(plp_u16_at(p + 82));
    for (int i = 0; i < 256; i++)
        r.w[i] = (int8_t)((p[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) * (p[i / 16] & 15));
    for (int b = 0; b < 8; b++) {
        r.s[b] = d;
        r.m[b] = -(dmin * (float)(p[2 * b] >> 4));
        r.m2[b] = -(dmin * (float)(p[2 * b + 1] >> 4));
    }
}

static void expand_q3_k(const uint8_t *p, row r)
{
    const float d = plp_half(plp_u16_at(p + 108));
    const uint8_t *packed = p + 96;         /* sixteen 6-bit scales in 12 bytes, 32 too large */
    for (int i = 0; i < 256; i++)
        r.w[i] = (int8_t)((p[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) + (p[i % 32] >> i / 32 & 1) * 4 - 4);
    for (int g = 0; g < 16; g++) {
        const int sc = (packed[g % 8] >> g / 8 * 4 & 15) | (packed[8 + g % 4] >> g / 4 * 2 & 3) << 4;
        (g % 2 ? r.m : r.s)[g / 2] = d * (float)(sc - 32);
    }
}

static void expand_iq4_xs(const uint8_t *p, row r)
{
    const float d = plp_half(plp_u16_at(p));
    for (int b = 0; b < 8; b++) {
        const int sc = (p[4 + b / 2] >> b % 2 * 4 & 15) | (plp_u16_at(p + 2) >> 2 * b & 3) << 4;
        r.s[b] = d * (float)(sc - 32);
        looked_up(p + 8 + 16 * b, plp_iq4_values, r.w + 32 * b);
    }
}

/* One block of the file. */
static void expand_block(int type, const uint8_t *p, row r)
{
    switch (type) {
    case PLP_TYPE_Q4_0: case PLP_TYPE_Q5_0: case PLP_TYPE_Q8_0: case PLP_TYPE_IQ4_NL:
        r.s[0] = plp_half(plp_u16_at(p));
        break;
    case PLP_TYPE_Q4_1: case PLP_TYPE_Q5_1:
        r.s[0] = plp_half(plp_u16_at(p));
        r.m[0] = plp_half(plp_u16_at(p + 2));
        break;
    case PLP_TYPE_MXFP4:
        r.s[0] = plp_half_e8m0(p[0]);
        break;
    }
    switch (type) {
    case PLP_TYPE_Q4_0:   nibbles(p + 2, 0, 8, r.w); break;
    case PLP_TYPE_Q4_1:   nibbles(p + 4, 0, 0, r.w); break;
    case PLP_TYPE_Q5_0:   nibbles(p + 6, plp_u32_at(p + 2), 16, r.w); break;
    case PLP_TYPE_Q5_1:   nibbles(p + 8, plp_u32_at(p + 4), 0, r.w); break;
    case PLP_TYPE_Q8_0:   memcpy(r.w, p + 2, 32); break;
    case PLP_TYPE_IQ4_NL: looked_up(p + 2, plp_iq4_values, r.w); break;
    case PLP_TYPE_MXFP4:  looked_up(p + 1, plp_fp4_values, r.w); break;
    case PLP_TYPE_Q2_K:   expand_q2_k(p, r); break;
    case PLP_TYPE_Q3_K:   expand_q3_k(p, r); break;
    case PLP_TYPE_Q4_K:   expand_q45_k(p, false, r); break;
    case PLP_TYPE_Q5_K:   expand_q45_k(p, true, r); break;
    case PLP_TYPE_Q6_K:   expand_q6_k(p, r); break;
    case PLP_TYPE_IQ4_XS: expand_iq4_xs(p, r); break;
    }
}

static void expand(int type, const uint8_t *p, uint32_t k, row r)
{
    const plp_type_info *t = plp_type_get(type);
    const uint32_t len = t->block_len;
    for (uint32_t i = 0; i < k; i += len, p += t->block_bytes, r.w += len, r.s += len / 32, r.m += len / 32, r.m2 += len / 32)
        expand_block(type, p, r);
}

/* ---- the product -------------------------------------------------------------------------- */

static int32_t dot16(const int8_t *a, const int8_t *b)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += a[i] * b[i];
    return sum;
}

static float row_dot(int form, row r, const x_block *x, uint32_t n_blocks)
{
    float acc = 0;
    for (uint32_t b = 0; b < n_blocks; b++, x++) {
        const int32_t d0 = dot16(r.w + b * 32, x->q), d1 = dot16(r.w + b * 32 + 16, x->q + 16);
        float t;
        if (form == PLP_FORM_SUB)
            t = __builtin_fmaf(r.m[b], (float)d1, r.s[b] * (float)d0) * x->xs;
        else {
            t = (r.s[b] * x->xs) * (float)(d0 + d1);
            if (form == PLP_FORM_MIN) t = __builtin_fmaf(r.m[b], x->xm, t);
            if (form == PLP_FORM_MN2) t = __builtin_fmaf(r.m2[b], x->xh[1], __builtin_fmaf(r.m[b], x->xh[0], t));
        }
        acc = acc + t;
    }
    return acc;
}

static size_t linear_work(uint32_t n, uint32_t k) { return lines(sizeof(float) * (size_t)k); }

static void linear(const plp_rows *w, uint32_t r0, uint32_t r1, const void *x, uint32_t n, float *y, size_t ldy,
                   bool add, void *work)
{
    const uint32_t n_blocks = w->k / 32;
    const int form = plp_type_form(w->type);
    float *scales = (float *)work + w->k / 4;
    const row r = { work, scales, scales + n_blocks, scales + 2 * n_blocks };
    for (uint32_t i = r0; i < r1; i++) {
        expand(w->type, (const uint8_t *)w->data + i * w->row_bytes, w->k, r);
        for (uint32_t t = 0; t < n; t++) {
            const float v = row_dot(form, r, (const x_block *)x + (size_t)t * n_blocks, n_blocks);
            y[t * ldy + i] = add ? y[t * ldy + i] + v : v;
        }
    }
}

static void linear_f(const plp_rows *w, uint32_t r0, uint32_t r1, const float *x, size_t ldx, uint32_t n, float *y,
                     size_t ldy, bool add, void *work)
{
    for (uint32_t i = r0; i < r1; i++) {
        plp_type_get(w->type)->dequantize((const uint8_t *)w->data + i * w->row_bytes, work, w->k);
        for (uint32_t t = 0; t < n; t++) {
            const float v = plp_dot16(work, x + t * ldx, w->k);
            y[t * ldy + i] = add ? y[t * ldy + i] + v : v;
        }
    }
}

void plp_fill_ref_linear(plp_kernels *k)
{
    k->panel_rows = PLP_ROW_STEP;
    k->x_bytes = x_bytes;
    k->x_pack = x_pack;
    k->linear_work = linear_work;
    k->linear = linear;
    k->linear_f = linear_f;
}
