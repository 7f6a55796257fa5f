/*
 * kernels/x86/avx512_vector.c - tier "avx512": norms, rotary positions, activations, one vector at a time
 *
 * `add` and `scale` stay with ref/: they are one pass over memory.
 */
#include "kernels/x86/avx512.h"
#include "kernels/ref/delta.h"

/* sum16 of x * x (mean subtracted first when `centred`). */
INLINE float squares(const float *x, uint32_t n)
{
    __m512 acc = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        acc = _mm512_mask3_fmadd_ps(v, v, acc, mask);
    }
    return fold16(acc);
}

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    const __m512 r = splat(1.0f / __builtin_sqrtf(squares(x, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), r);
        if (w) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, w + i));
        _mm512_mask_storeu_ps(y + i, mask, v);
    }
}

static void layernorm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    __m512 acc = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        acc = _mm512_mask_add_ps(acc, mask, acc, _mm512_maskz_loadu_ps(mask, x + i));
    }
    const __m512 mean = splat(fold16(acc) / (float)n);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        _mm512_mask_storeu_ps(y + i, mask, _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean));
    }
    const __m512 r = splat(1.0f / __builtin_sqrtf(squares(y, n) / (float)n + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, y + i), r);
        if (w) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, w + i));
        if (b) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, b + i));
        _mm512_mask_storeu_ps(y + i, mask, v);
    }
}

INLINE __m512 negate(__m512 v) { return _mm512_xor_ps(v, splat(-0.0f)); }

/* Pairs (i, i + n_rot / 2): sixteen at a time; cosines and sines are parted by two permutes. */
static void rope_neox(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *cs)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i += 16) {
        const __mmask16 mask = lanes_below(half - i);
        const __m512 low = _mm512_maskz_loadu_ps(lanes_below(n_rot - 2 * i), cs + 2 * i);
        const __m512 high = half - i > 8 ? _mm512_maskz_loadu_ps(lanes_below(n_rot - 2 * i - 16), cs + 2 * i + 16) : low;
        const __m512 cosine = _mm512_permutex2var_ps(low, even, high), sine = _mm512_permutex2var_ps(low, odd, high);
        for (uint32_t h = 0; h < n_heads; h++) {
            float *pa = x + (size_t)h * head_dim + i, *pb = pa + half;
            const __m512 a = _mm512_maskz_loadu_ps(mask, pa), b = _mm512_maskz_loadu_ps(mask, pb);
            _mm512_mask_storeu_ps(pa, mask, _mm512_fmadd_ps(a, cosine, negate(_mm512_mul_ps(b, sine))));
            _mm512_mask_storeu_ps(pb, mask, _mm512_fmadd_ps(a, sine, _mm512_mul_ps(b, cosine)));
        }
    }
}

/* Pairs (2i, 2i + 1): both of a pair in place, the other one by a swap within the pair.
 * even: fma(a, cos, -(b sin)); odd: fma(a, sin, b cos). */
static void rope_norm(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *cs)
{
    const __mmask16 odd = 0xaaaa;
    for (uint32_t i = 0; i < n_rot; i += 16) {
        const __mmask16 mask = lanes_below(n_rot - i);
        const __m512 both = _mm512_maskz_loadu_ps(mask, cs + i);                        /* cos, sin, cos, sin */
        const __m512 swapped = _mm512_permute_ps(both, 0xb1);
        const __m512 second = _mm512_mask_blend_ps(odd, negate(swapped), swapped);      /* -sin, cos */
        for (uint32_t h = 0; h < n_heads; h++) {
            float *p = x + (size_t)h * head_dim + i;
            const __m512 v = _mm512_maskz_loadu_ps(mask, p);
            const __m512 a = _mm512_moveldup_ps(v), b = _mm512_movehdup_ps(v);
            _mm512_mask_storeu_ps(p, mask, _mm512_fmadd_ps(a, both, _mm512_mul_ps(b, second)));
        }
    }
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *cs, int kind)
{
    (kind == PLP_ROPE_NORM ? rope_norm : rope_neox)(x, n_heads, head_dim, n_rot, cs);
}

INLINE __m512 act16(const int kind, __m512 g)
{
    const __m512 one = splat(1);
    if (kind == PLP_ACT_SILU) return _mm512_div_ps(g, _mm512_add_ps(one, exp16(negate(g))));
    if (kind == PLP_ACT_SIGMOID) return _mm512_div_ps(one, _mm512_add_ps(one, exp16(negate(g))));
    if (kind == PLP_ACT_RELU) return _mm512_max_ps(g, _mm512_setzero_ps());
    if (kind == PLP_ACT_GELU_ERF)
        return _mm512_mul_ps(_mm512_mul_ps(splat(0.5f), g), _mm512_add_ps(one, erf16(_mm512_mul_ps(g, splat(PLP_SQRT_HALF)))));
    const __m512 cube = _mm512_fmadd_ps(splat(PLP_GELU_A), _mm512_mul_ps(g, g), one);
    const __m512 t = tanh16(_mm512_mul_ps(_mm512_mul_ps(splat(PLP_GELU_C), g), cube));
    return _mm512_mul_ps(_mm512_mul_ps(splat(0.5f), g), _mm512_add_ps(one, t));
}

INLINE void glu_of(const int kind, float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        __m512 v = act16(kind, _mm512_maskz_loadu_ps(mask, gate + i));
        if (up) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, up + i));
        _mm512_mask_storeu_ps(y + i, mask, v);
    }
}

static void glu(float *y, const float *gate, const float *up, uint32_t n, int act)
{
    switch (act) {
    case PLP_ACT_SILU:     glu_of(PLP_ACT_SILU, y, gate, up, n); break;
    case PLP_ACT_GELU:     glu_of(PLP_ACT_GELU, y, gate, up, n); break;
    case PLP_ACT_GELU_ERF: glu_of(PLP_ACT_GELU_ERF, y, gate, up, n); break;
    case PLP_ACT_SIGMOID:  glu_of(PLP_ACT_SIGMOID, y, gate, up, n); break;
    default:               glu_of(PLP_ACT_RELU, y, gate, up, n); break;
    }
}

static void softcap(float *y, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 mask = lanes_below(n - i);
        const __m512 x = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, y + i), splat(cap));
        const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mask_mov_ps(_mm512_mul_ps(splat(cap), tanh16(x)), none, x));
    }
}

void plp_fill_avx512_vector(plp_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->layernorm = layernorm;
    k->rope = rope;
    k->glu = glu;
    k->delta_rule = plp_delta_rule;
    k->softcap = softcap;
}
