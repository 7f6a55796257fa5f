/*
 * backend/gpu/kernels/rows.h - norms, rotary positions, activations, and the other loops over elements
 *
 * Sums have kernels/kernels.h's order: sixteen lanes, element i in lane i % 16, then a tree.
 */

/* GROUP_X * THREADS + THREAD: word. */
KERNEL(copy_words, copy_args)
{
    const u64 i = GROUP_X * (u64)THREADS + THREAD;
    if (i < a.n)
        a.to[i] = a.from[i];
}

/* GROUP_X: row. Every simdgroup computes the sum: cheaper than waiting for one that does. */
KERNEL(rmsnorm, norm_args)
{
    DEVICE const float *x = a.x + GROUP_X * a.ld;
    DEVICE float *y = a.y + GROUP_X * a.ld;
    float sum = 0.0f;

    for (u32 i = LANE % 16; i < a.n; i += 16)
        sum = FMA(x[i], x[i], sum);
    sum = fold16(sum);
    const float r = 1.0f / SQRT(sum / (float)a.n + a.eps);
    BARRIER();                      /* y may be x */
    for (u32 i = THREAD; i < a.n; i += THREADS)
        y[i] = a.w ? x[i] * r * a.w[i] : x[i] * r;
}

/* GROUP_X: row. */
KERNEL(layernorm, norm_args)
{
    DEVICE const float *x = a.x + GROUP_X * a.ld;
    DEVICE float *y = a.y + GROUP_X * a.ld;
    float sum = 0.0f, squares = 0.0f;

    for (u32 i = LANE % 16; i < a.n; i += 16)
        sum = sum + x[i];
    const float mean = fold16(sum) / (float)a.n;
    for (u32 i = LANE % 16; i < a.n; i += 16)
        squares = FMA(x[i] - mean, x[i] - mean, squares);
    const float r = 1.0f / SQRT(fold16(squares) / (float)a.n + a.eps);
    BARRIER();                      /* y may be x */
    for (u32 i = THREAD; i < a.n; i += THREADS) {
        float v = (x[i] - mean) * r;
        if (a.w)
            v = v * a.w[i];
        if (a.bias)
            v = v + a.bias[i];
        y[i] = v;
    }
}

/* GROUP_Y: token; GROUP_X * THREADS + THREAD: rotated pair, over all heads. */
KERNEL(rope, rope_args)
{
    const u32 pairs = a.n_rot / 2, i = GROUP_X * THREADS + THREAD, head = i / pairs, p = i % pairs;
    if (head >= a.n_heads)
        return;
    DEVICE const float *cs = a.cs + GROUP_Y * (u64)a.n_rot + 2 * p;
    DEVICE float *x = a.x + GROUP_Y * a.ld + head * a.head_dim + (a.neox ? p : 2 * p);
    const u32 apart = a.neox ? pairs : 1;
    const float v = x[0], w = x[apart];
    x[0] = FMA(v, cs[0], -(w * cs[1]));
    x[apart] = FMA(v, cs[1], w * cs[0]);
}

/* plp_act of kernels/kernels.h. */
INLINE float activate(float g, u32 act)
{
    switch (act) {
    case 0:
        return g / (1.0f + exp_f(-g));
    case 1:
        return 0.5f * g * (1.0f + tanh_f(0.79788456f * g * FMA(0.044715f, g * g, 1.0f)));
    case 2:
        return 0.5f * g * (1.0f + erf_f(g * 0.70710678f));
    case 3:
        return g > 0.0f ? g : 0.0f;
    default:
        return 1.0f / (1.0f + exp_f(-g));
    }
}

/* GROUP_Y: token; GROUP_X * THREADS + THREAD: element. */
KERNEL(glu, glu_args)
{
    const u32 i = GROUP_X * THREADS + THREAD;
    if (i >= a.n)
        return;
    const u64 at = GROUP_Y * a.ld + i;
    if (a.act == 5) {               /* PLP_ACT_SILU_LIMITED */
        const float g = a.gate[at] > 7.0f ? 7.0f : a.gate[at], u = a.up[at] > 7.0f ? 7.0f : a.up[at] < -7.0f ? -7.0f : a.up[at];
        a.y[at] = g / (1.0f + exp_f(-1.702f * g)) * (1.0f + u);
    } else {
        const float v = activate(a.gate[at], a.act);
        a.y[at] = a.up ? v * a.up[at] : v;
    }
}

/* The rest: GROUP_X * THREADS + THREAD is the element. */
KERNEL(add, vector_args)
{
    const u64 i = GROUP_X * (u64)THREADS + THREAD;
    if (i < a.n)
        a.y[i] = a.y[i] + a.x[i];
}

KERNEL(scale, vector_args)
{
    const u64 i = GROUP_X * (u64)THREADS + THREAD;
    if (i < a.n)
        a.y[i] = a.y[i] * a.a;
}

KERNEL(softcap, vector_args)
{
    const u64 i = GROUP_X * (u64)THREADS + THREAD;
    if (i < a.n) {
        const float x = a.y[i] / a.a;
        a.y[i] = x == x ? a.a * tanh_f(x) : x;
    }
}

/* GROUP_Y: row of y. */
KERNEL(gather, gather_args)
{
    const u64 i = GROUP_X * (u64)THREADS + THREAD;
    if (i < a.width)
        a.y[GROUP_Y * a.width + i] = a.x[(u64)(u32)a.rows[GROUP_Y] * a.width + i];
}

/* GROUP_Y: row of x. */
KERNEL(scatter_add, gather_args)
{
    const u64 i = GROUP_X * (u64)THREADS + THREAD;
    if (i < a.width) {
        DEVICE float *y = a.y + (u64)(u32)a.rows[GROUP_Y] * a.width + i;
        *y = *y + a.scale[GROUP_Y] * a.x[GROUP_Y * a.width + i];
    }
}
