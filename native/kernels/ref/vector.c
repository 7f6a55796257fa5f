/*
 * kernels/ref/vector.c - one vector at a time: norms, rotary positions, activations, add, scale, soft cap, the delta rule
 *
 * Plain C; the order of every operation is part of THE CONTRACT (kernels.h). Outputs may be inputs.
 */
#include "kernels/ref/ref.h"
#include "kernels/ref/delta.h"
#include "kernels/ref/math.h"

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    const float r = 1.0f / __builtin_sqrtf(plp_dot16(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = w ? (x[i] * r) * w[i] : x[i] * r;
}

static void layernorm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    const float mean = plp_sum16(x, n) / (float)n;
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] - mean;
    const float r = 1.0f / __builtin_sqrtf(plp_dot16(y, y, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        float v = y[i] * r;
        if (w) v = v * w[i];
        if (b) v = v + b[i];
        y[i] = v;
    }
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *cs, int kind)
{
    const uint32_t step = kind == PLP_ROPE_NORM ? 2 : 1, apart = kind == PLP_ROPE_NORM ? 1 : n_rot / 2;
    for (uint32_t h = 0; h < n_heads; h++, x += head_dim)
        for (uint32_t i = 0; i < n_rot / 2; i++) {
            const float cosine = cs[2 * i], sine = cs[2 * i + 1];
            const float a = x[i * step], b = x[i * step + apart];
            x[i * step] = __builtin_fmaf(a, cosine, -(b * sine));
            x[i * step + apart] = __builtin_fmaf(a, sine, b * cosine);
        }
}

static float act(float g, int kind)
{
    switch (kind) {
    case PLP_ACT_SILU:
        return g / (1.0f + plp_exp(-g));
    case PLP_ACT_GELU:
        return (0.5f * g) * (1.0f + plp_tanh((PLP_GELU_C * g) * __builtin_fmaf(PLP_GELU_A, g * g, 1.0f)));
    case PLP_ACT_GELU_ERF:
        return (0.5f * g) * (1.0f + plp_erf(g * PLP_SQRT_HALF));
    case PLP_ACT_SIGMOID:
        return 1.0f / (1.0f + plp_exp(-g));
    default:
        return g > 0 ? g : 0;
    }
}

static void glu(float *y, const float *gate, const float *up, uint32_t n, int kind)
{
    for (uint32_t i = 0; i < n; i++) y[i] = up ? act(gate[i], kind) * up[i] : act(gate[i], kind);
}

static void glu_limited(float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float g = gate[i] > 7 ? 7 : gate[i], u = up[i] > 7 ? 7 : up[i] < -7 ? -7 : up[i];
        y[i] = g / (1.0f + plp_exp(-1.702f * g)) * (1.0f + u);
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] += x[i];
}

static void scale(float *y, float a, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] *= a;
}

static void softcap(float *y, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float x = y[i] / cap;
        y[i] = x == x ? cap * plp_tanh(x) : x;
    }
}

void plp_fill_ref_vector(plp_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->layernorm = layernorm;
    k->rope = rope;
    k->glu = glu;
    k->glu_limited = glu_limited;
    k->add = add;
    k->scale = scale;
    k->delta_rule = plp_delta_rule;
    k->softcap = softcap;
}
