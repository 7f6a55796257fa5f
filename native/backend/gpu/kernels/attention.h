/*
 * backend/gpu/kernels/attention.h - attention over blocks found through the table, never gathered
 *
 * attention_<format>_<D>_<Q>   a simdgroup takes Q queries of one kv head (heads up to D channels) and walks
 *                              the blocks of its splits in order: K and V are read once for all Q
 * attention_fold               sums of splits folded in order, where several groups shared one context
 *
 * A query is a token and a head of the kv head's group: number tok * G + g. Splits are PLP_SPLIT_LEN tokens
 * (SPLIT_LEN here), blocks are taken in units of 16 tokens. In a unit, lane l computes the score of token
 * l % 16 over the even (l < 16) or odd channels; then it owns channels l, l + 32, ... of the sum.
 *
 * A token attends its own block in f16 and earlier ones in their sealed format. Formulas and their order:
 * kernels/kernels.h and kernels/sealed.h.
 *
 * GROUP_X: piece; GROUP_Y: kv head. Simdgroups work alone: no BARRIER.
 */
#define SPLIT_LEN  256u
#define UNIT       16u

INLINE u32 first_visible(u32 window, u32 pos) { return window && pos + 1 > window ? pos + 1 - window : 0; }
INLINE i32 signed_byte(u32 word, u32 i)       { return (i32)(i8)(word >> (8 * i)); }

#define F_SEALED 0
#define F_Q4     0
#define F        f16
#include "backend/gpu/kernels/attention_sizes.h"
#undef F
#undef F_SEALED
#define F_SEALED 1
#define F        q8
#include "backend/gpu/kernels/attention_sizes.h"
#undef F
#undef F_Q4
#define F_Q4     1
#define F        q4
#include "backend/gpu/kernels/attention_sizes.h"
#undef F
#undef F_Q4
#undef F_SEALED

/* GROUP_X: item of folds; GROUP_Y: head. One simdgroup; all lanes follow m and s, each sums its channels. */
KERNEL(attention_fold, attention_args)
{
    DEVICE const gpu_fold *f = a.folds + GROUP_X;
    float m = NEVER, s = 0.0f, acc[8];

    for (u32 j = 0; j < 8; j++)
        acc[j] = 0.0f;
    for (u32 i = 0; i < f->n_splits; i++) {
        DEVICE const float *part = a.parts + (u64)(f->part + i * f->stride + GROUP_Y) * (a.head_dim + 2);
        if (part[0] == NEVER)
            continue;
        const float top = part[0] > m ? part[0] : m;
        const float x = exp_f(m - top), y = exp_f(part[0] - top);
        m = top;
        s = FMA(part[1], y, s * x);
        for (u32 j = 0; j < 8; j++)
            if (j * 32 + LANE < a.head_dim)
                acc[j] = FMA(part[2 + j * 32 + LANE], y, acc[j] * x);
    }
    if (a.sinks)
        s = s + exp_f(a.sinks[GROUP_Y] - m);
    for (u32 j = 0; j < 8; j++)
        if (j * 32 + LANE < a.head_dim)
            a.out[f->row * a.ldo + GROUP_Y * a.head_dim + j * 32 + LANE] = acc[j] / s;
}
