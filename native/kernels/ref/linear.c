/*
 * kernels/ref/linear.c - weight rows times activations: plain C, the form that the fast tiers are held to
 *
 * Activations  [n][k/32] of x_block. One row of weights at a time is expanded into `work`, then used for
 *              all tokens.
 * work         int8 [k] | f32 [k/32] scales | f32 [k/32] minimums (MIN) or second scales (SUB);
 *              linear_f: f32 [k], the row dequantised
 * Threads      pure functions
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/math.h"

/* 32 activations x[i] ~ xs * q[i]. */
typedef struct x_block {
    float  xs;
    float  xm;              /* xs * sum(q), what a minimum is multiplied with */
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
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        const int32_t q = plp_round_int(x[i] * inverse);
        out->q[i] = (int8_t)q;
        sum += q;
    }
    out->xs = zero ? 0 : amax / 127.0f;
    out->xm = out->xs * (float)sum;
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
    float  *m;              /* [k/32] MIN: minimums; SUB: scales of each second half */
} row;

static void nibbles(const uint8_t *p, int n, int off, int8_t *low, int8_t *high)
{
    for (int i = 0; i < n; i++) {
        low[i] = (int8_t)((p[i] & 15) - off);
        high[i] = (int8_t)((p[i] >> 4) - off);
    }
}

static void expand_q4_k(const uint8_t *p, row r)
{
    const float d = plp_half(plp_load_u16(p)), dmin = plp_half(plp_load_u16(p + 2));
    const uint8_t *packed = p + 4;          /* eight 6-bit scales and minimums in 12 bytes */
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
    }
    for (int b = 0; b < 8; b += 2) nibbles(p + 16 + b * 16, 32, 0, r.w + b * 32, r.w + b * 32 + 32);
}

static void expand_q6_k(const uint8_t *p, row r)
{
    const float d = plp_half(plp_load_u16(p + 208));
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

static void expand(int type, const uint8_t *p, uint32_t k, row r)
{
    const uint32_t len = type == PLP_TYPE_Q4_K || type == PLP_TYPE_Q6_K ? 256 : 32;
    for (uint32_t i = 0; i < k; i += len, r.w += len, r.s += len / 32, r.m += len / 32)
        switch (type) {
        case PLP_TYPE_Q4_0:
            r.s[0] = plp_half(plp_load_u16(p));
            nibbles(p + 2, 16, 8, r.w, r.w + 16);
            p += 18;
            break;
        case PLP_TYPE_Q4_1:
            r.s[0] = plp_half(plp_load_u16(p));
            r.m[0] = plp_half(plp_load_u16(p + 2));
            nibbles(p + 4, 16, 0, r.w, r.w + 16);
            p += 20;
            break;
        case PLP_TYPE_Q8_0:
            r.s[0] = plp_half(plp_load_u16(p));
            memcpy(r.w, p + 2, 32);
            p += 34;
            break;
        case PLP_TYPE_Q4_K:
            expand_q4_k(p, r);
            p += 144;
            break;
        case PLP_TYPE_Q6_K:
            expand_q6_k(p, r);
            p += 210;
            break;
        }
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
    const row r = { work, (float *)work + w->k / 4, (float *)work + w->k / 4 + n_blocks };
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
    k->x_bytes = x_bytes;
    k->x_pack = x_pack;
    k->linear_work = linear_work;
    k->linear = linear;
    k->linear_f = linear_f;
}
