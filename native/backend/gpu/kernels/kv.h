/*
 * backend/gpu/kernels/kv.h - keys and values into blocks, and full blocks into their sealed format
 *
 * Layouts: kernels/kernels.h (f16 tiles), kernels/sealed.h (q8, q4). Formulas and their order are theirs.
 */
#define SEALED_LEN  16u
#define V_GROUP     32u
#define MAX_HEAD    256u
#define NO_BLOCK    0xffffffffu

INLINE DEVICE u8 *tile_of(DEVICE u8 *block, u32 layer, u32 n_kv_heads, u32 head, u32 tile_bytes)
{
    return block + ((u64)layer * n_kv_heads + head) * tile_bytes;
}
INLINE float clamp_f(float x, float lo, float hi) { return x < lo ? lo : x > hi ? hi : x; }
INLINE i32   nearest(float x, float lo, float hi) { return round_int(clamp_f(x, lo, hi)); }
INLINE float inverse_of(float s)                  { return s >= X_ZERO ? 1.0f / s : 0.0f; }

/* GROUP_X: token of the batch; GROUP_Y: kv head. */
KERNEL(kv_put, kv_args)
{
    DEVICE const gpu_row *r = a.rows + GROUP_X;
    DEVICE const gpu_seq *s = a.seqs + r->seq;
    const u32 slot = r->pos % a.block_len;
    DEVICE u16 *k = (DEVICE u16 *)tile_of(a.open[s->first_block + r->pos / a.block_len].at, a.layer, a.n_kv_heads, GROUP_Y, a.open_tile_bytes);
    DEVICE u16 *v = k + (u64)a.block_len * a.head_dim;
    const u64 from = GROUP_X * a.ld + GROUP_Y * a.head_dim;

    for (u32 d = THREAD; d < a.head_dim; d += THREADS) {
        k[d * a.block_len + slot] = f32_half(a.k[from + d]);
        v[slot * a.head_dim + d] = f32_half(a.v[from + d]);
    }
}

/* ---- seal: GROUP_X: item of seals; GROUP_Y: kv head -------------------------------------------------- */

KERNEL(kv_seal_q8, kv_args)
{
    DEVICE const gpu_seal *item = a.seals + GROUP_X;
    const u32 at = a.seqs[item->seq].first_block + item->block, d = a.head_dim, n_groups = (d + V_GROUP - 1) / V_GROUP;
    DEVICE const u16 *k = (DEVICE const u16 *)tile_of(a.open[at].at, a.layer, a.n_kv_heads, GROUP_Y, a.open_tile_bytes);
    DEVICE const u16 *v = k + SEALED_LEN * d;
    DEVICE u8 *to = tile_of(a.sealed[at].at, a.layer, a.n_kv_heads, GROUP_Y, a.tile_bytes);
    DEVICE i8 *to_v = (DEVICE i8 *)(to + SEALED_LEN * d);
    DEVICE u16 *k_scale = (DEVICE u16 *)(to + 2 * SEALED_LEN * d), *v_scale = k_scale + d;

    for (u32 c = THREAD; c < d; c += THREADS) {
        float most = 0.0f;
        for (u32 t = 0; t < SEALED_LEN; t++)
            most = larger(ABS(half_f32(k[c * SEALED_LEN + t])), most);
        const u16 s = f32_half(most / 127.0f);
        const float inv = inverse_of(half_f32(s));
        k_scale[c] = s;
        for (u32 t = 0; t < SEALED_LEN; t++)
            to[(c / 4 * SEALED_LEN + t) * 4 + c % 4] = (u8)(nearest(half_f32(k[c * SEALED_LEN + t]) * inv, -127.0f, 127.0f) + 128);
    }
    for (u32 i = THREAD; i < n_groups * SEALED_LEN; i += THREADS) {
        const u32 c0 = i / SEALED_LEN * V_GROUP, c1 = c0 + V_GROUP < d ? c0 + V_GROUP : d, t = i % SEALED_LEN;
        float most = 0.0f;
        for (u32 c = c0; c < c1; c++)
            most = larger(ABS(half_f32(v[t * d + c])), most);
        const u16 s = f32_half(most / 127.0f);
        const float inv = inverse_of(half_f32(s));
        v_scale[i] = s;
        for (u32 c = c0; c < c1; c++)
            to_v[(t / 4 * d + c) * 4 + t % 4] = (i8)nearest(half_f32(v[t * d + c]) * inv, -127.0f, 127.0f);
    }
}

/* A range's 8-bit minimum and scale, in units; then what turns a value into its nibble. */
INLINE void quantise_range(float lo, float hi, float us, float um, PRIVATE u8 *scale, PRIVATE i8 *minimum,
                           PRIVATE float *base, PRIVATE float *inv)
{
    const i32 m = nearest(lo * inverse_of(um), -127.0f, 127.0f);
    const float mf = um * (float)m;
    i32 s = nearest((hi - mf) * (1.0f / 15.0f) * inverse_of(us), 0.0f, 255.0f);
    if (s == 0 && hi > mf)
        s = 1;
    *minimum = (i8)m;
    *scale = (u8)s;
    *base = mf;
    *inv = inverse_of(us * (float)s);
}

INLINE u32 nibble(u16 h, float base, float inv) { return (u32)nearest((half_f32(h) - base) * inv, 0.0f, 15.0f); }

KERNEL(kv_seal_q4, kv_args)
{
    SHARED(float, lows, MAX_HEAD);      /* of a channel's tokens (K), then of a token's channels (V) */
    SHARED(float, highs, MAX_HEAD);
    SHARED(float, bases, MAX_HEAD);
    SHARED(float, inverses, MAX_HEAD);
    DEVICE const gpu_seal *item = a.seals + GROUP_X;
    const u32 at = a.seqs[item->seq].first_block + item->block, d = a.head_dim, n_v = (d + V_GROUP - 1) / V_GROUP * SEALED_LEN;
    DEVICE const u16 *k = (DEVICE const u16 *)tile_of(a.open[at].at, a.layer, a.n_kv_heads, GROUP_Y, a.open_tile_bytes);
    DEVICE const u16 *v = k + SEALED_LEN * d;
    DEVICE u8 *to_k = tile_of(a.sealed[at].at, a.layer, a.n_kv_heads, GROUP_Y, a.tile_bytes), *to_v = to_k + SEALED_LEN * d / 2;
    DEVICE u8 *scales = to_k + SEALED_LEN * d;
    DEVICE u16 *units = (DEVICE u16 *)(scales + 2 * d + 2 * n_v);

    for (u32 part = 0; part < 2; part++) {
        const u32 n = part == 0 ? d : n_v;
        for (u32 i = THREAD; i < n; i += THREADS) {
            const u32 c0 = i / SEALED_LEN * V_GROUP, c1 = c0 + V_GROUP < d ? c0 + V_GROUP : d, t = i % SEALED_LEN;
            const u32 count = part == 0 ? SEALED_LEN : c1 - c0;
            DEVICE const u16 *from = part == 0 ? k + i * SEALED_LEN : v + t * d + c0;
            float lo = half_f32(from[0]), hi = lo;
            for (u32 j = 1; j < count; j++) {
                const float x = half_f32(from[j]);
                lo = x < lo ? x : lo;
                hi = x > hi ? x : hi;
            }
            lows[i] = lo;
            highs[i] = hi;
        }
        BARRIER();
        float width = 0.0f, far = 0.0f;
        for (u32 i = 0; i < n; i++) {
            width = larger(highs[i] - lows[i], width);
            far = larger(ABS(lows[i]), far);
        }
        const u16 us = f32_half(width / (15.0f * 255.0f)), um = f32_half(far / 127.0f);
        if (THREAD == 0) {
            units[2 * part] = us;
            units[2 * part + 1] = um;
        }
        for (u32 i = THREAD; i < n; i += THREADS) {
            u8 s;
            i8 m;
            float base, inv;
            quantise_range(lows[i], highs[i], half_f32(us), half_f32(um), &s, &m, &base, &inv);
            scales[part * 2 * d + i] = s;
            scales[part * 2 * d + n + i] = (u8)m;
            bases[i] = base;
            inverses[i] = inv;
        }
        BARRIER();
        /* A byte holds channels c and c + d / 2 of K, tokens t and t + 8 of V. */
        for (u32 i = THREAD; i < SEALED_LEN * d / 2; i += THREADS) {
            if (part == 0) {
                const u32 c = i / SEALED_LEN, t = i % SEALED_LEN, e = c + d / 2;
                to_k[(c / 4 * SEALED_LEN + t) * 4 + c % 4] = (u8)(nibble(k[c * SEALED_LEN + t], bases[c], inverses[c])
                    | nibble(k[e * SEALED_LEN + t], bases[e], inverses[e]) << 4);
            } else {
                const u32 c = i % d, t = i / d, g = c / V_GROUP * SEALED_LEN;
                to_v[(t / 4 * d + c) * 4 + t % 4] = (u8)(nibble(v[t * d + c], bases[g + t], inverses[g + t])
                    | nibble(v[(t + 8) * d + c], bases[g + t + 8], inverses[g + t + 8]) << 4);
            }
        }
        BARRIER();
    }
}
