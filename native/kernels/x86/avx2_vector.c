/*
 * kernels/x86/avx2_vector.c - tier "avx2": norms, rotary positions, activations, one vector at a time
 *
 * `add` and `scale` stay with ref/: they are one pass over memory. Lengths that are no multiple of 16 are
 * finished from a copy padded with zeros, or by ref/math.h where a lane must not see one.
 */
#include "kernels/x86/avx2.h"
#include "kernels/ref/delta.h"

/* The last n % 16 elements as a whole pair. */
INLINE pair load_tail(const float *x, uint32_t n)
{
    float v[16] = { 0 };
    memcpy(v, x, n * sizeof(float));
    return (pair){ _mm256_loadu_ps(v), _mm256_loadu_ps(v + 8) };
}
INLINE pair load_pair(const float *x, uint32_t n)
{
    return n >= 16 ? (pair){ _mm256_loadu_ps(x), _mm256_loadu_ps(x + 8) } : load_tail(x, n);
}

/* sum16 of x, or of x * x. */
INLINE float sum(const float *x, uint32_t n, const bool squared)
{
    pair acc = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const pair v = load_pair(x + i, 16);
        acc.a = squared ? _mm256_fmadd_ps(v.a, v.a, acc.a) : _mm256_add_ps(acc.a, v.a);
        acc.b = squared ? _mm256_fmadd_ps(v.b, v.b, acc.b) : _mm256_add_ps(acc.b, v.b);
    }
    if (i == n) return fold16(acc);
    float lane[16];
    _mm256_storeu_ps(lane, acc.a);
    _mm256_storeu_ps(lane + 8, acc.b);
    for (uint32_t j = i; j < n; j++) lane[j - i] = squared ? __builtin_fmaf(x[j], x[j], lane[j - i]) : lane[j - i] + x[j];
    return plp_fold16(lane);
}

/* y = x * r * w + b; w and b may be NULL. */
INLINE void normalise(float *y, const float *x, const float *w, const float *b, uint32_t n, float r)
{
    for (uint32_t i = 0; i < n; i += 16) {
        pair v = load_pair(x + i, n - i);
        v.a = _mm256_mul_ps(v.a, splat(r)), v.b = _mm256_mul_ps(v.b, splat(r));
        if (w) {
            const pair f = load_pair(w + i, n - i);
            v.a = _mm256_mul_ps(v.a, f.a), v.b = _mm256_mul_ps(v.b, f.b);
        }
        if (b) {
            const pair f = load_pair(b + i, n - i);
            v.a = _mm256_add_ps(v.a, f.a), v.b = _mm256_add_ps(v.b, f.b);
        }
        put_rows(y + i, v, n - i, false);
    }
}

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    normalise(y, x, w, NULL, n, 1.0f / __builtin_sqrtf(sum(x, n, true) / (float)n + eps));
}

static void layernorm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    const float mean = sum(x, n, false) / (float)n;
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] - mean;
    normalise(y, y, w, b, n, 1.0f / __builtin_sqrtf(sum(y, n, true) / (float)n + eps));
}

/* Pairs (2i, 2i + 1): both of a pair in place, the other one by a swap within the pair.
 * even: fma(a, cos, -(b sin)); odd: fma(a, sin, b cos). */
INLINE __m256 rotate_norm(__m256 v, __m256 both)
{
    const __m256 swapped = _mm256_permute_ps(both, 0xb1), second = _mm256_blend_ps(negate(swapped), swapped, 0xaa);
    return _mm256_fmadd_ps(_mm256_moveldup_ps(v), both, _mm256_mul_ps(_mm256_movehdup_ps(v), second));
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, const float *cs, int kind)
{
    const uint32_t half = n_rot / 2;
    for (uint32_t h = 0; h < n_heads; h++, x += head_dim) {
        uint32_t i = 0;                                             /* pairs done */
        if (kind == PLP_ROPE_NORM)
            for (; i + 4 <= half; i += 4) _mm256_storeu_ps(x + 2 * i, rotate_norm(_mm256_loadu_ps(x + 2 * i), _mm256_loadu_ps(cs + 2 * i)));
        else
            for (; i + 8 <= half; i += 8) {
                const __m256 low = _mm256_loadu_ps(cs + 2 * i), high = _mm256_loadu_ps(cs + 2 * i + 8);
                const __m256 c = _mm256_shuffle_ps(low, high, 0x88), s = _mm256_shuffle_ps(low, high, 0xdd);
                const __m256 cosine = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(c), 0xd8));
                const __m256 sine = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(s), 0xd8));
                const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
                _mm256_storeu_ps(x + i, _mm256_fmadd_ps(a, cosine, negate(_mm256_mul_ps(b, sine))));
                _mm256_storeu_ps(x + i + half, _mm256_fmadd_ps(a, sine, _mm256_mul_ps(b, cosine)));
            }
        for (; i < half; i++) {
            float *pa = kind == PLP_ROPE_NORM ? x + 2 * i : x + i, *pb = kind == PLP_ROPE_NORM ? pa + 1 : pa + half;
            const float a = *pa, b = *pb, c = cs[2 * i], s = cs[2 * i + 1];
            *pa = __builtin_fmaf(a, c, -(b * s));
            *pb = __builtin_fmaf(a, s, b * c);
        }
    }
}

INLINE __m256 act8(const int kind, __m256 g)
{
    const __m256 one = splat(1), half = _mm256_mul_ps(splat(0.5f), g);
    switch (kind) {
    case PLP_ACT_SILU:
        return _mm256_div_ps(g, _mm256_add_ps(one, exp8(negate(g))));
    case PLP_ACT_GELU: {
        const __m256 cube = _mm256_fmadd_ps(splat(PLP_GELU_A), _mm256_mul_ps(g, g), one);
        return _mm256_mul_ps(half, _mm256_add_ps(one, tanh8(_mm256_mul_ps(_mm256_mul_ps(splat(PLP_GELU_C), g), cube))));
    }
    case PLP_ACT_GELU_ERF:
        return _mm256_mul_ps(half, _mm256_add_ps(one, erf8(_mm256_mul_ps(g, splat(PLP_SQRT_HALF)))));
    case PLP_ACT_SIGMOID:
        return _mm256_div_ps(one, _mm256_add_ps(one, exp8(negate(g))));
    default:
        return _mm256_max_ps(g, _mm256_setzero_ps());
    }
}

INLINE void glu_of(const int kind, float *y, const float *gate, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        pair v = load_pair(gate + i, n - i);
        v.a = act8(kind, v.a), v.b = act8(kind, v.b);
        if (up) {
            const pair f = load_pair(up + i, n - i);
            v.a = _mm256_mul_ps(v.a, f.a), v.b = _mm256_mul_ps(v.b, f.b);
        }
        put_rows(y + i, v, n - i, false);
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

INLINE __m256 capped(__m256 y, __m256 cap)
{
    const __m256 x = _mm256_div_ps(y, cap);
    return _mm256_blendv_ps(_mm256_mul_ps(cap, tanh8(x)), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static void softcap(float *y, float cap, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        pair v = load_pair(y + i, n - i);
        v.a = capped(v.a, splat(cap)), v.b = capped(v.b, splat(cap));
        put_rows(y + i, v, n - i, false);
    }
}

void plp_fill_avx2_vector(plp_kernels *k)
{
    k->rmsnorm = rmsnorm;
    k->layernorm = layernorm;
    k->rope = rope;
    k->glu = glu;
    k->delta_rule = plp_delta_rule;
    k->softcap = softcap;
}
