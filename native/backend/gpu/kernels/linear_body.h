/* backend/gpu/kernels/linear_body.h - the kernels of one integer type T (linear.h) */

#define UNPACK CAT(unpack16_, T)
#define SCALES CAT(scales_, T)
#define TERM   CAT(TERM_, CAT(FORM_, T))
#define VALUE  CAT(VALUE_, CAT(FORM_, T))
#define FACTORS CAT(FACTORS_, CAT(FORM_, T))

/* GROUP_X: token of ids; a thread dequantises 16 values at a time. */
KERNEL(CAT(embed_, T), embed_args)
{
    DEVICE const u8 *row = a.table + (u64)(u32)a.ids[GROUP_X] * a.row_bytes;
    DEVICE float *y = a.y + GROUP_X * (u64)a.k;
    for (u32 i = THREAD; i < a.k / 16; i += THREADS) {
        float w[FACTORS];
        i32 q[4];
        SCALES(row, i / 2, w);
        UNPACK(row, i / 2, i % 2, q);
        for (u32 j = 0; j < 16; j++) {
            const float v = VALUE(w, (i8)(q[j / 4] >> (j % 4 * 8)), i % 2);
            y[i * 16 + j] = a.scale == 1.0f ? v : v * a.scale;
        }
    }
}

/* GROUP_X: 16 rows, 4 to a simdgroup; a.n <= MATVEC_TOKENS. */
KERNEL(CAT(matvec_, T), linear_args)
{
    SHARED(float, terms, 4 * 32 * 33);              /* [simdgroup][token * 4 + row][lane], padded */
    const u32 row0 = (GROUP_X * 4 + SIMD) * MATVEC_ROWS, n_blocks = a.k / 32;
    LOCAL float *mine = terms + SIMD * 32 * 33;
    const u32 my_row = row0 + LANE % MATVEC_ROWS, my_token = LANE / MATVEC_ROWS;
    float acc = 0.0f;

    for (u32 first = 0; first < n_blocks; first += 32) {
        const u32 b = first + LANE;
        if (b < n_blocks) {
            i32 w[MATVEC_ROWS][8];
            float scales[MATVEC_ROWS][FACTORS];
            for (u32 r = 0; r < MATVEC_ROWS; r++) {
                /* Rows past the end repeat the last one; nobody stores them. */
                DEVICE const u8 *row = a.w + (u64)(row0 + r < a.rows ? row0 + r : a.rows - 1) * a.row_bytes;
                UNPACK(row, b, 0, w[r]);
                UNPACK(row, b, 1, w[r] + 4);
                SCALES(row, b, scales[r]);
            }
            for (u32 t = 0; t < a.n; t++) {
                DEVICE const i32 *x = (DEVICE const i32 *)(a.q + t * (u64)a.k + b * 32u);
                float xf[FACTORS];
                i32 d0[MATVEC_ROWS], d1[MATVEC_ROWS];
                token_factors(FACTORS, x, a.scale[t * (u64)n_blocks + b], a.sum[t * (u64)n_blocks + b], xf);
                for (u32 r = 0; r < MATVEC_ROWS; r++)
                    d0[r] = d1[r] = 0;
                for (u32 i = 0; i < 4; i++) {
                    const i32 x0 = x[i], x1 = x[i + 4];
                    for (u32 r = 0; r < MATVEC_ROWS; r++) {
                        d0[r] = dot4(w[r][i], x0, d0[r]);
                        d1[r] = dot4(w[r][i + 4], x1, d1[r]);
                    }
                }
                for (u32 r = 0; r < MATVEC_ROWS; r++)
                    mine[(t * MATVEC_ROWS + r) * 33 + LANE] = TERM(scales[r], xf, d0[r], d1[r]);
            }
        }
        SIMD_BARRIER();
        if (my_token < a.n) {
            const u32 n = n_blocks - first < 32 ? n_blocks - first : 32;
            for (u32 i = 0; i < n; i++)
                acc = acc + mine[LANE * 33 + i];
        }
        SIMD_BARRIER();
    }
    if (my_token < a.n && my_row < a.rows) {
        DEVICE float *y = a.y + my_token * a.ldy + my_row;
        float v = a.add ? *y + acc : acc;
        if (a.bias)
            v = v + a.bias[my_row];
        *y = v;
    }
}

/* GROUP_X: 64 rows, 16 to a simdgroup; GROUP_Y: 32 tokens. */
KERNEL(CAT(matmul_, T), linear_args)
{
    SHARED(tile_value, ws, MATMUL_ROWS * TILE_STRIDE);
    SHARED(tile_value, xs, MATMUL_TOKENS * TILE_STRIDE);
    SHARED(float, w_scale, MATMUL_ROWS * TILE_BLOCKS * FACTORS);    /* [row][block][factor] */
    SHARED(float, x_scale, MATMUL_TOKENS * TILE_BLOCKS * FACTORS);  /* [token][block][factor] */
    SHARED(float, scratch, 4 * 128);
    const u32 row0 = GROUP_X * MATMUL_ROWS, token0 = GROUP_Y * MATMUL_TOKENS, n_blocks = a.k / 32;
    float acc[4][4];

    for (u32 f = 0; f < 4; f++)
        for (u32 e = 0; e < 4; e++)
            acc[f][e] = 0.0f;
    for (u32 first = 0; first < n_blocks; first += TILE_BLOCKS) {
        const u32 n = n_blocks - first < TILE_BLOCKS ? n_blocks - first : TILE_BLOCKS;

        BARRIER();
        /* A thread unpacks half a block. Rows and tokens past the end repeat the last; nobody stores them. */
        for (u32 i = THREAD; i < MATMUL_ROWS * n * 2; i += THREADS) {
            const u32 r = i / (n * 2), b = i / 2 % n, h = i % 2;
            DEVICE const u8 *row = a.w + (u64)(row0 + r < a.rows ? row0 + r : a.rows - 1) * a.row_bytes;
            LOCAL tile_value *to = ws + r * TILE_STRIDE + b * 32 + h * 16;
            i32 q[4];
            UNPACK(row, first + b, h, q);
            for (u32 j = 0; j < 4; j++)
                tile_put4(to + 4 * j, q[j]);
            if (h == 0) {
                float w[FACTORS];
                SCALES(row, first + b, w);
                for (u32 j = 0; j < FACTORS; j++)
                    w_scale[(r * TILE_BLOCKS + b) * FACTORS + j] = w[j];
            }
        }
        for (u32 i = THREAD; i < MATMUL_TOKENS * n * 8; i += THREADS) {
            const u32 t = i / (n * 8), j = i % (n * 8), b = j / 8;
            const u64 token = token0 + t < a.n ? token0 + t : a.n - 1;
            DEVICE const i32 *from = (DEVICE const i32 *)(a.q + token * a.k + first * 32 + j * 4);
            tile_put4(xs + t * TILE_STRIDE + j * 4, *from);
            if (j % 8 == 0) {
                float x[FACTORS];
                token_factors(FACTORS, from, a.scale[token * n_blocks + first + b], a.sum[token * n_blocks + first + b], x);
                for (u32 f = 0; f < FACTORS; f++)
                    x_scale[(t * TILE_BLOCKS + b) * FACTORS + f] = x[f];
            }
        }
        BARRIER();

        for (u32 b = 0; b < n; b++)
            for (u32 f = 0; f < 4; f++) {
                LOCAL const tile_value *w = ws + SIMD * 16 * TILE_STRIDE + b * 32, *x = xs + f * 8 * TILE_STRIDE + b * 32;
                i32 d0[4], d1[4] = { 0, 0, 0, 0 };
                if (CAT(SPLIT_, CAT(FORM_, T))) {
                    tile_dot16(w, x, scratch + SIMD * 128, d0);
                    tile_dot16(w + 16, x + 16, scratch + SIMD * 128, d1);
                } else {
                    tile_dot32(w, x, scratch + SIMD * 128, d0);
                }
                for (u32 e = 0; e < 4; e++) {
                    LOCAL const float *sw = w_scale + ((SIMD * 16 + TILE_ROW(LANE, e)) * TILE_BLOCKS + b) * FACTORS;
                    LOCAL const float *sx = x_scale + ((f * 8 + TILE_COL(LANE, e)) * TILE_BLOCKS + b) * FACTORS;
                    acc[f][e] = acc[f][e] + TERM(sw, sx, d0[e], d1[e]);
                }
            }
    }
    for (u32 f = 0; f < 4; f++)
        for (u32 e = 0; e < 4; e++) {
            const u32 r = row0 + SIMD * 16 + TILE_ROW(LANE, e), t = token0 + f * 8 + TILE_COL(LANE, e);
            if (r < a.rows && t < a.n) {
                DEVICE float *y = a.y + t * a.ldy + r;
                float v = a.add ? *y + acc[f][e] : acc[f][e];
                if (a.bias)
                    v = v + a.bias[r];
                *y = v;
            }
        }
}

#undef UNPACK
#undef SCALES
#undef TERM
#undef VALUE
#undef FACTORS
