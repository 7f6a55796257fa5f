/*
 * kernels/kernels.h - the arithmetic of a forward pass on row slices: pointers in, pointers out, no threads
 *
 * One struct of functions; plain C fills it first (ref/), then each tier that this CPU has overwrites
 * what it does better (x86/, arm/). PLP_CPU=<tier> stops at that tier.
 *
 * THE CONTRACT. Every tier computes the very bits of ref/. Floats round once per named step, sums have
 * a fixed order, products that may fuse say so (fmaf) and all others do not (-ffp-contract=off), so a
 * token's logits do not depend on chunking, batch, thread count, block order, or which tier ran.
 *   sum16    a sum of n floats: lane i % 16 adds element i in order, by fma for a sum of products;
 *            then lanes i += i + 8, i += i + 4, i += i + 2, 0 += 1.
 *   exp      plp_exp of ref/math.h: the same polynomial, the same fma chain, everywhere.
 *   linear   activations in blocks of 32: amax, scale xs = amax / 127, q = rint(x * (127 / amax)) (all 0 if
 *            amax < 2^-100, where 127 / amax could overflow). Per 32-block an exact int32 dot, ONE f32 term t, then acc = acc + t, a plain add,
 *            blocks in order from +0. With ws = the block's scale, rounded once (d * sc), -off applied exactly:
 *              SYM  t = (ws * xs) * dot
 *              MIN  t = fma(wm, xs * sum(q), (ws * xs) * dot)       wm = the minimum (Q4_K: -(dmin * m))
 *              SUB  t = fma(w1, dot1, w0 * dot0) * xs               two halves of 16
 *              MN2  t = fma(m1, xs * sum(q1), fma(m0, xs * sum(q0), (ws * xs) * dot))     two halves of 16; the weights
 *                   of the dot are sc * q, ws = d, the minimums -(dmin * m)
 *   float    weights without an integer form (FLT in format/quants.def), as f32: y = sum16 of fma products in f32.
 *   attention, per unit of 16 tokens and query: score = c0 + c1, the fma chains over even and odd d;
 *            (soft cap: cap * plp_tanh(score / cap)); slots outside [lo, hi) are -inf; a new maximum first
 *            scales s and acc by plp_exp(old - new); p = plp_exp(score - m); s = s + sum16(p);
 *            acc[d] = fma(p[t], v[t][d], acc[d]), t in order over [lo, hi) only: free slots are never
 *            initialised and may hold NaN.
 *
 * Alignment  tiles, x_pack's output and `work` 64 bytes; everything else the natural one
 * Bounds     no kernel reads or writes past what its arguments name (tests end inputs at guard pages),
 *            except that x_pack's output and `work` are the tier's own
 * Threads    pure functions: any; `work` is the caller's, one per thread
 */
#ifndef PLP_KERNELS_KERNELS_H
#define PLP_KERNELS_KERNELS_H

#include "base/cpu.h"
#include "base/status.h"
#include "format/quants.h"

/* Rows of a weight matrix as they lie in the file: row r at data + r * row_bytes, k values each. */
typedef struct plp_rows {
    const void *data;
    size_t      row_bytes;
    int32_t     type;                       /* plp_type */
    uint32_t    k;
} plp_rows;

#define PLP_MAX_HEAD_DIM  512u              /* of attention */
#define PLP_MAX_DELTA_DIM 256u              /* of a gated delta rule */

/* Running softmax of n_q queries (heads of a group, possibly of several tokens) over one kv head. */
typedef struct plp_attn {
    uint32_t     n_q;
    uint32_t     head_dim;                  /* a multiple of 16, at most PLP_MAX_HEAD_DIM */
    const float *q;                         /* [n_q][head_dim], already scaled */
    float       *m, *s;                     /* [n_q]; start at -INFINITY and 0 */
    float       *acc;                       /* [n_q][head_dim]; starts at 0; not yet divided by s */
    float        softcap;                   /* 0: none */
} plp_attn;

/* Which slots of a block each query may see: [lo[i], hi[i]), lo <= hi <= block_len; an empty range
 * leaves that query's state alone (so does one that is empty within a unit of 16). NULL pointers: all of the block, for every query. */
typedef struct plp_seen { const uint32_t *lo, *hi; } plp_seen;

enum plp_rope_kind { PLP_ROPE_NORM, PLP_ROPE_NEOX };        /* pairs (2i, 2i+1) or (i, i + n_rot/2) */
enum plp_act       { PLP_ACT_SILU, PLP_ACT_GELU, PLP_ACT_GELU_ERF, PLP_ACT_RELU, PLP_ACT_SIGMOID,    /* of the kernel glu */
                     PLP_ACT_SILU_LIMITED };                                        /* glu_limited */

/* Raised whenever THE CONTRACT changes bits: stored KV of another version is not used. */
#define PLP_NUMERICS_VERSION 2u

#define PLP_ROW_STEP   16u      /* linear: r0 is a multiple of this */
#define PLP_TOKEN_STEP 16u      /* x_pack: t0 is a multiple of this */

typedef struct plp_kernels {
    const char *tier;
    uint32_t    panel_rows;     /* that `linear` unpacks at a time for many tokens: a multiple of PLP_ROW_STEP */
#define KERNEL(result, name, args) result (*name) args;
#include "kernels/kernels.def"
#undef KERNEL
} plp_kernels;

/* The best tier of this CPU, or the one PLP_CPU names. PLP_E_UNSUPPORTED with the reason otherwise. */
plp_status plp_kernels_get(const plp_kernels **out, plp_error *err);
/* Every tier this CPU can run, weakest first (tests, benchmarks): count, and the i-th. */
uint32_t           plp_kernels_count(void);
const plp_kernels *plp_kernels_at(uint32_t i);

/* Bytes of a tile: one block of one layer and one kv head. 0 for an unknown format, or one without that block length.
 * f16: [ K [head_dim][block_len] | V [block_len][head_dim] ]; q8 and q4: kernels/sealed.h, of 16 tokens only. */
size_t plp_tile_bytes(int32_t kv_format, uint32_t head_dim, uint32_t block_len);

/* How many tiles on, in the order of the walk, attention's `next` should lie: long enough for memory to answer, and so
 * few bytes that they are still in L1 when their turn comes. */
static inline uint32_t plp_attn_ahead(size_t tile_bytes) { return tile_bytes < 8192 ? (uint32_t)(8192 / tile_bytes) : 1; }

#endif
