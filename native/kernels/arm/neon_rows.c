/*
 * kernels/arm/neon_rows.c - tier "neon": norms, rotary positions, activations; and what the tier consists of
 *
 * The operations and their order are those of ref/vector.c. Lengths are whatever a model has: tails of less
 * than a vector go through the scalar forms of ref/math.h or a small buffer, with the same result.
 */
#include "kernels/arm/arm.h"
#include "kernels/arm/vector.h"

/* sum16 of (x - shift)^2; with a shift of 0 that is of x^2, to the bit. */
INLINE float sum_squares(const float *x, uint32_t n, float shift)
{
    float32x4_t lanes[4], next[4];
    const float32x4_t s = vdupq_n_f32(shift);
    uint32_t i = 0;
    UNROLL for (int j = 0; j < 4; j++)
        lanes[j] = vdupq_n_f32(0);
    for (; i + 16 <= n; i += 16)
        UNROLL for (int j = 0; j < 4; j++) {
            const float32x4_t v = vsubq_f32(vld1q_f32(x + i + 4 * j), s);
            lanes[j] = vfmaq_f32(lanes[j], v, v);
        }
    if (i < n) {
        load_part(x + i, n - i, next);
        UNROLL for (int j = 0; j < 4; j++) {
            const float32x4_t v = vsubq_f32(next[j], s);
            next[j] = vfmaq_f32(lanes[j], v, v);
        }
        select_part(n - i, next, lanes);
    }
    return fold16(lanes);
}

/* sum16 of x. */
static float sum(const float *x, uint32_t n)
{
    float32x4_t lanes[4], next[4];
    uint32_t i = 0;
    UNROLL for (int j = 0; j < 4; j++)
        lanes[j] = vdupq_n_f32(0);
    for (; i + 16 <= n; i += 16)
        UNROLL for (int j = 0; j < 4; j++)
            lanes[j] = vaddq_f32(lanes[j], vld1q_f32(x + i + 4 * j));
    if (i < n) {
        load_part(x + i, n - i, next);
        UNROLL for (int j = 0; j < 4; j++)
            next[j] = vaddq_f32(lanes[j], next[j]);
        select_part(n - i, next, lanes);
    }
    return fold16(lanes);
}

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    const float r = 1.0f / __builtin_sqrtf(sum_squares(x, n, 0.0f) / (float)n + eps);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vmulq_n_f32(vld1q_f32(x + i), r);
        vst1q_f32(y + i, w ? vmulq_f32(v, vld1q_f32(w + i)) : v);
    }
    for (; i < n; i++)
        y[i] = w ? (x[i] * r) * w[i] : x[i] * r;
}

static void layernorm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    const float mean = sum(x, n) / (float)n;
    const float r = 1.0f / __builtin_sqrtf(sum_squares(x, n, mean) / (float)n + eps);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t v = vmulq_n_f32(vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(mean)), r);
        if (w) v = vmulq_f32(v, vld1q_f32(w + i));
        if (b) v = vaddq_f32(v, vld1q_f32(b + i));
        vst1q_f32(y + i, v);
    }
    for (; i < n; i++) {
        float v = (x[i] - mean) * r;
        if (w) v = v * w[i];
        if (b) v = v + b[i];
        y[i] = v;
    }
}

/* (a, b) turned by the angle of (c, s). */
INLINE float32x4x2_t turn(float32x4_t a, float32x4_t b, float32x4x2_t cs)
{
    const float32x4x2_t turned = { {
        vfmaq_f32(vnegq_f32(vmulq_f32(b, cs.val[1])), a, cs.val[0]),
        vfmaq_f32(vmulq_f32(b, cs.val[0]), a, cs.val[1]),
    } };
    return turned;
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *cs, int kind)
{
    const uint32_t pairs = n_rot / 2;
    const uint32_t step = kind == PLP_ROPE_NORM ? 2 : 1, apart = kind == PLP_ROPE_NORM ? 1 : pairs;

    for (uint32_t h = 0; h < n_heads; h++, x += head_dim) {
        uint32_t i = 0;
        for (; i + 4 <= pairs; i += 4) {
            const float32x4x2_t angle = vld2q_f32(cs + 2 * i);
            if (kind == PLP_ROPE_NORM) {
                const float32x4x2_t v = vld2q_f32(x + 2 * i);
                vst2q_f32(x + 2 * i, turn(v.val[0], v.val[1], angle));
            } else {
                const float32x4x2_t v = turn(vld1q_f32(x + i), vld1q_f32(x + apart + i), angle);
                vst1q_f32(x + i, v.val[0]);
                vst1q_f32(x + apart + i, v.val[1]);
            }
        }
        for (; i < pairs; i++) {
            float *to_a = x + i * step, *to_b = to_a + apart;
            const float a = *to_a, b = *to_b, c = cs[2 * i], s = cs[2 * i + 1];
            *to_a = __builtin_fmaf(a, c, -(b * s));
            *to_b = __builtin_fmaf(a, s, b * c);
        }
    }
}

INLINE float32x4_t act4(float32x4_t g, int kind)
{
    const float32x4_t one = vdupq_n_f32(1.0f), half = vmulq_n_f32(g, 0.5f);
    switch (kind) {
    case PLP_ACT_SILU:
        return vdivq_f32(g, vaddq_f32(one, exp4(vnegq_f32(g))));
    case PLP_ACT_GELU: {
        const float32x4_t inner = vfmaq_f32(one, vdupq_n_f32(PLP_GELU_A), vmulq_f32(g, g));
        return vmulq_f32(half, vaddq_f32(one, tanh4(vmulq_f32(vmulq_n_f32(g, PLP_GELU_C), inner))));
    }
    case PLP_ACT_GELU_ERF: {        /* rare: the scalar erf, lane by lane */
        float e[4];
        vst1q_f32(e, vmulq_n_f32(g, PLP_SQRT_HALF));
        for (int i = 0; i < 4; i++)
            e[i] = plp_erf(e[i]);
        return vmulq_f32(half, vaddq_f32(one, vld1q_f32(e)));
    }
    case PLP_ACT_SIGMOID:
        return vdivq_f32(one, vaddq_f32(one, exp4(vnegq_f32(g))));
    default:
        return vmaxnmq_f32(g, vdupq_n_f32(0));
    }
}

INLINE void glu_kind(float *y, const float *gate, const float *up, uint32_t n, int kind)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = act4(vld1q_f32(gate + i), kind);
        vst1q_f32(y + i, up ? vmulq_f32(v, vld1q_f32(up + i)) : v);
    }
    if (i < n) {
        float32x4_t g[4];
        float part[4];
        load_part(gate + i, n - i, g);
        vst1q_f32(part, act4(g[0], kind));
        for (uint32_t j = 0; i < n; i++, j++)
            y[i] = up ? part[j] * up[i] : part[j];
    }
}

static void glu(float *y, const float *gate, const float *up, uint32_t n, int act)
{
    switch (act) {
    case PLP_ACT_SILU:     glu_kind(y, gate, up, n, PLP_ACT_SILU); break;
    case PLP_ACT_GELU:     glu_kind(y, gate, up, n, PLP_ACT_GELU); break;
    case PLP_ACT_GELU_ERF: glu_kind(y, gate, up, n, PLP_ACT_GELU_ERF); break;
    case PLP_ACT_SIGMOID:  glu_kind(y, gate, up, n, PLP_ACT_SIGMOID); break;
    default:               glu_kind(y, gate, up, n, PLP_ACT_RELU); break;
    }
}

void plp_fill_neon(plp_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->layernorm = layernorm;
    k->rope = rope;
    k->glu = glu;
    plp_fill_neon_linear(k);
    plp_fill_neon_float(k);
    plp_fill_neon_attention(k);
    plp_fill_neon_seal(k);
    plp_fill_neon_sealed(k);
}
