/* backend/gpu/kernels/attention_body.h - one kernel: format F, heads of up to D_MAX channels, Q_N queries a simdgroup */

#define J_N (D_MAX / 32u)       /* channels of a lane */

KERNEL_WITH(REGISTERS, NAME, attention_args)
{
    SHARED(float, q_all, 4 * Q_N * D_MAX);              /* [simdgroup][query][channel], scaled */
    SHARED(float, p_all, 4 * Q_N * UNIT);               /* [simdgroup][query][token] */
#if F_SEALED
    SHARED(i16, q16_all, 4 * Q_N * D_MAX);              /* queries times K's scales, as integers */
    SHARED(i32, pq_all, 4 * Q_N * J_N * 4);             /* [simdgroup][query][V group]: 16 int8, probabilities times V's scales */
    SHARED(float, back_all, 4 * Q_N * J_N * 2);         /* what undoes that; q4: and what V's minimums add */
    LOCAL i16 *q16 = q16_all + SIMD * Q_N * D_MAX;
    LOCAL i32 *pq = pq_all + SIMD * Q_N * J_N * 4;
    LOCAL float *back = back_all + SIMD * Q_N * J_N * 2;
#endif
    LOCAL float *qs = q_all + SIMD * Q_N * D_MAX, *ps = p_all + SIMD * Q_N * UNIT;
    DEVICE const gpu_piece *piece = a.pieces + GROUP_X;
    DEVICE const gpu_seq *seq = a.seqs + piece->seq;
    const u32 D = a.head_dim, G = a.n_heads / a.n_kv_heads, n_q = piece->n_tok * G, len = a.block_len;
    const u32 token = LANE % 16, odd = LANE / 16;

    for (u32 i0 = SIMD * Q_N; i0 < n_q; i0 += THREADS / 32 * Q_N) {
        u32 pos[Q_N], lo[Q_N], hi[Q_N];
        float m_all[Q_N], s_all[Q_N], acc_all[Q_N][J_N], m[Q_N], s[Q_N], acc[Q_N][J_N], c[Q_N];

        for (u32 i = 0; i < Q_N; i++) {
            /* Queries past the end repeat the last one; nobody stores them. */
            const u32 n = i0 + i < n_q ? i0 + i : n_q - 1, tok = piece->tok0 + n / G;
            DEVICE const float *from = a.q + (seq->row0 + tok) * a.ldq + (GROUP_Y * G + n % G) * D;
            pos[i] = seq->pos0 + tok;
            for (u32 d = LANE; d < D; d += 32)
                qs[i * D_MAX + d] = from[d] * a.scale;
            m_all[i] = NEVER;
            s_all[i] = 0.0f;
            for (u32 j = 0; j < J_N; j++)
                acc_all[i][j] = 0.0f;
        }
        SIMD_BARRIER();

        const u32 lowest = first_visible(a.window, pos[0]), end = pos[Q_N - 1] + 1;
        for (u32 split = piece->split0; split < piece->split1; split++) {
            const u32 first = split * SPLIT_LEN, last = first + SPLIT_LEN < end ? first + SPLIT_LEN : end;
            for (u32 i = 0; i < Q_N; i++) {
                m[i] = NEVER;
                s[i] = 0.0f;
                for (u32 j = 0; j < J_N; j++)
                    acc[i][j] = 0.0f;
            }
            for (u32 unit = (first > lowest ? first : lowest) / UNIT; unit * UNIT < last; unit++) {
                const u32 base = unit * UNIT, b = base / len, u = base % len;
                bool any_sealed = false, any_open = false;

                for (u32 i = 0; i < Q_N; i++) {
                    const u32 from = first_visible(a.window, pos[i]), to = pos[i] + 1;
                    const bool own = F_SEALED ? pos[i] / len == b : true;
                    lo[i] = from > base ? from - base : 0;
                    hi[i] = to > base ? (to - base < UNIT ? to - base : UNIT) : 0;
                    if (lo[i] < hi[i]) {
                        any_open = any_open || own;
                        any_sealed = any_sealed || !own;
                    }
                }
                for (u32 own = 0; own < 2; own++) {
                    if (own ? !any_open : !any_sealed)
                        continue;
                    DEVICE const u8 *tile = own && F_SEALED
                        ? tile_of(a.open[seq->first_block + b].at, a.layer, a.n_kv_heads, GROUP_Y, a.open_tile_bytes)
                        : tile_of(a.sealed[seq->first_block + b].at, a.layer, a.n_kv_heads, GROUP_Y, a.tile_bytes);
                    bool sees[Q_N];
                    for (u32 i = 0; i < Q_N; i++)
                        sees[i] = lo[i] < hi[i] && (F_SEALED ? (pos[i] / len == b) == (own == 1) : true);

                    /* ---- scores: c ---- */
#if F_SEALED
                    if (!own) {
                        DEVICE const u8 *scales = tile + (F_Q4 ? SEALED_LEN : 2 * SEALED_LEN) * D;
#if F_Q4
                        DEVICE const u16 *units = (DEVICE const u16 *)(scales + 2 * D + 2 * ((D + V_GROUP - 1) / V_GROUP) * SEALED_LEN);
                        const float uks = half_f32(units[0]), ukm = half_f32(units[1]);
#endif
                        float undo[Q_N], floor_of[Q_N];
                        i32 dot[Q_N];
                        for (u32 i = 0; i < Q_N; i++) {
                            float most = 0.0f;
                            floor_of[i] = 0.0f;
                            dot[i] = 0;
#if F_Q4
                            for (u32 d = token; d < D; d += 16)
                                floor_of[i] = FMA(qs[i * D_MAX + d], ukm * (float)(i8)scales[D + d], floor_of[i]);
                            floor_of[i] = fold16(floor_of[i]);
#define K_SCALE(d) (uks * (float)scales[d])
#else
#define K_SCALE(d) half_f32(((DEVICE const u16 *)scales)[d])
#endif
                            for (u32 d = LANE; d < D; d += 32)
                                most = larger(ABS(qs[i * D_MAX + d] * K_SCALE(d)), most);
                            most = max32(most);
                            undo[i] = most / 32512.0f;
                            const float inv = most >= X_ZERO ? 32512.0f / most : 0.0f;
                            for (u32 d = LANE; d < D; d += 32)
                                q16[i * D_MAX + d] = (i16)round_int(qs[i * D_MAX + d] * K_SCALE(d) * inv);
#undef K_SCALE
                        }
                        SIMD_BARRIER();
                        /* A word is one token's: four channels, or (q4) twice four, D / 2 apart. */
                        for (u32 w = odd; w < D / (F_Q4 ? 8 : 4); w += 2) {
                            const u32 v = ((DEVICE const u32 *)tile)[w * SEALED_LEN + token];
                            for (u32 i = 0; i < Q_N; i++) {
                                LOCAL const i16 *q = q16 + i * D_MAX + 4 * w;
                                for (u32 e = 0; e < 4; e++)
#if F_Q4
                                    dot[i] += q[e] * (i32)(v >> (8 * e) & 15u) + q[D / 2 + e] * (i32)(v >> (8 * e + 4) & 15u);
#else
                                    dot[i] += q[e] * ((i32)(v >> (8 * e) & 255u) - 128);
#endif
                            }
                        }
                        for (u32 i = 0; i < Q_N; i++) {
                            dot[i] += lane_xor_i(dot[i], 16);
                            c[i] = (float)dot[i] * undo[i];
                            if (F_Q4)
                                c[i] = c[i] + floor_of[i];
                        }
                    } else
#endif
                    {
                        DEVICE const u16 *k = (DEVICE const u16 *)tile + u;
                        for (u32 i = 0; i < Q_N; i++)
                            c[i] = 0.0f;
                        for (u32 d = odd; d < D; d += 2) {
                            const float v = half_f32(k[d * len + token]);
                            for (u32 i = 0; i < Q_N; i++)
                                c[i] = FMA(qs[i * D_MAX + d], v, c[i]);
                        }
                        for (u32 i = 0; i < Q_N; i++)
                            c[i] = c[i] + lane_xor(c[i], 16);
                    }

                    /* ---- probabilities: c, ps ---- */
                    for (u32 i = 0; i < Q_N; i++) {
                        if (!sees[i])
                            continue;
                        if (a.softcap > 0.0f)
                            c[i] = a.softcap * tanh_f(c[i] / a.softcap);
                        if (token < lo[i] || token >= hi[i])
                            c[i] = NEVER;
                        const float top = larger(max16(c[i]), m[i]);
                        if (top > m[i]) {
                            const float shrink = exp_f(m[i] - top);
                            m[i] = top;
                            s[i] = s[i] * shrink;
                            for (u32 j = 0; j < J_N; j++)
                                acc[i][j] = acc[i][j] * shrink;
                        }
                        c[i] = exp_f(c[i] - top);
                        s[i] = s[i] + fold16(c[i]);
                        if (odd == 0)
                            ps[i * UNIT + token] = c[i];
                    }

                    /* ---- values: acc ---- */
#if F_SEALED
                    if (!own) {
                        DEVICE const u8 *scales = tile + (F_Q4 ? SEALED_LEN : 2 * SEALED_LEN) * D + 2 * D;
                        const u32 n_groups = (D + V_GROUP - 1) / V_GROUP;
#if F_Q4
                        DEVICE const u16 *units = (DEVICE const u16 *)(scales + 2 * n_groups * SEALED_LEN);
                        const float uvs = half_f32(units[2]), uvm = half_f32(units[3]);
#endif
                        for (u32 i = 0; i < Q_N; i++)
                            for (u32 g = 0; g < n_groups; g++) {
                                const u32 at = g * SEALED_LEN + token;
#if F_Q4
                                const float scaled = c[i] * (uvs * (float)scales[at]);
                                const float more = fold16(c[i] * (uvm * (float)(i8)scales[n_groups * SEALED_LEN + at]));
                                if (LANE == 0)
                                    back[(i * J_N + g) * 2 + 1] = more;
#else
                                const float scaled = c[i] * half_f32(((DEVICE const u16 *)scales)[at]);
#endif
                                const float most = max16(scaled);
                                if (odd == 0)
                                    ((LOCAL i8 *)pq)[(i * J_N + g) * 16 + token] = (i8)round_int(scaled * (most >= X_ZERO ? 127.0f / most : 0.0f));
                                if (LANE == 0)
                                    back[(i * J_N + g) * 2] = most / 127.0f;
                            }
                        SIMD_BARRIER();
                        DEVICE const u32 *v = (DEVICE const u32 *)(tile + (F_Q4 ? SEALED_LEN / 2 : SEALED_LEN) * D);
                        for (u32 j = 0; j < J_N; j++) {
                            const u32 ch = j * 32 + LANE;
                            if (ch >= D)
                                continue;
#if F_Q4
                            const u32 v0 = v[ch], v1 = v[D + ch];
                            const i32 w[4] = { (i32)(v0 & 0x0f0f0f0fu), (i32)(v1 & 0x0f0f0f0fu), (i32)(v0 >> 4 & 0x0f0f0f0fu), (i32)(v1 >> 4 & 0x0f0f0f0fu) };
#else
                            const i32 w[4] = { (i32)v[ch], (i32)v[D + ch], (i32)v[2 * D + ch], (i32)v[3 * D + ch] };
#endif
                            for (u32 i = 0; i < Q_N; i++) {
                                if (!sees[i])
                                    continue;
                                LOCAL const i32 *p = pq + (i * J_N + j) * 4;
                                const i32 dot = dot4(w[0], p[0], dot4(w[1], p[1], dot4(w[2], p[2], dot4(w[3], p[3], 0))));
                                acc[i][j] = FMA((float)dot, back[(i * J_N + j) * 2], acc[i][j]);
                                if (F_Q4)
                                    acc[i][j] = acc[i][j] + back[(i * J_N + j) * 2 + 1];
                            }
                        }
                    } else
#endif
                    {
                        DEVICE const u16 *v = (DEVICE const u16 *)tile + (len + u) * D;
                        SIMD_BARRIER();
                        for (u32 t = 0; t < UNIT; t++)
                            for (u32 j = 0; j < J_N; j++) {
                                const u32 ch = j * 32 + LANE;
                                if (ch >= D)
                                    continue;
                                const float value = half_f32(v[t * D + ch]);
                                for (u32 i = 0; i < Q_N; i++)
                                    if (sees[i] && t >= lo[i] && t < hi[i])
                                        acc[i][j] = FMA(ps[i * UNIT + t], value, acc[i][j]);
                            }
                    }
                    SIMD_BARRIER();
                }
            }
            for (u32 i = 0; i < Q_N; i++) {
                if (piece->to_parts) {
                    const u32 n = i0 + i;
                    if (n >= n_q)
                        continue;
                    DEVICE float *part = a.parts + (u64)(piece->part + n / G * a.n_heads + GROUP_Y * G + n % G) * (D + 2);
                    if (LANE == 0) {
                        part[0] = m[i];
                        part[1] = s[i];
                    }
                    for (u32 j = 0; j < J_N; j++)
                        if (j * 32 + LANE < D)
                            part[2 + j * 32 + LANE] = acc[i][j];
                } else if (m[i] != NEVER) {
                    const float top = m[i] > m_all[i] ? m[i] : m_all[i];
                    const float x = exp_f(m_all[i] - top), y = exp_f(m[i] - top);
                    m_all[i] = top;
                    s_all[i] = FMA(s[i], y, s_all[i] * x);
                    for (u32 j = 0; j < J_N; j++)
                        acc_all[i][j] = FMA(acc[i][j], y, acc_all[i][j] * x);
                }
            }
        }
        for (u32 i = 0; i < Q_N; i++) {
            const u32 n = i0 + i, head = GROUP_Y * G + n % G;
            if (piece->to_parts || n >= n_q)
                continue;
            if (a.sinks)
                s_all[i] = s_all[i] + exp_f(a.sinks[head] - m_all[i]);
            for (u32 j = 0; j < J_N; j++)
                if (j * 32 + LANE < D)
                    a.out[(seq->row0 + piece->tok0 + n / G) * a.ldo + head * D + j * 32 + LANE] = acc_all[i][j] / s_all[i];
        }
        SIMD_BARRIER();
    }
}

#undef J_N
