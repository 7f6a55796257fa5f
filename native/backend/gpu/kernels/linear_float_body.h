/* backend/gpu/kernels/linear_float_body.h - the kernels of one float type T (linear.h) */

/* GROUP_X: token of ids. */
KERNEL(CAT(embed_, T), embed_args)
{
    DEVICE const u8 *row = a.table + (u64)(u32)a.ids[GROUP_X] * a.row_bytes;
    for (u32 i = THREAD; i < a.k; i += THREADS) {
        const float v = CAT(value_, T)(row, i);
        a.y[GROUP_X * (u64)a.k + i] = a.scale == 1.0f ? v : v * a.scale;
    }
}

/* GROUP_X: 8 rows, GROUP_Y: 8 tokens. Lane l of a half simdgroup sums the elements l, l + 16, ... of its row. */
KERNEL(CAT(matvec_, T), linear_args)
{
    const u32 row = (GROUP_X * 4 + SIMD) * 2 + LANE / 16, token0 = GROUP_Y * 8;
    const u32 n = a.n - token0 < 8 ? a.n - token0 : 8;
    DEVICE const u8 *w = a.w + (u64)(row < a.rows ? row : a.rows - 1) * a.row_bytes;
    DEVICE const float *x = a.x + token0 * a.ldx;
    float acc[8];

    for (u32 t = 0; t < 8; t++)
        acc[t] = 0.0f;
    for (u32 i = LANE % 16; i < a.k; i += 16) {
        const float v = CAT(value_, T)(w, i);
        for (u32 t = 0; t < n; t++)
            acc[t] = FMA(v, x[t * a.ldx + i], acc[t]);
    }
    for (u32 t = 0; t < n; t++) {
        float v = fold16(acc[t]);
        if (LANE % 16 == 0 && row < a.rows) {
            DEVICE float *y = a.y + (token0 + t) * a.ldy + row;
            if (a.add)
                v = *y + v;
            if (a.bias)
                v = v + a.bias[row];
            *y = v;
        }
    }
}
