/*
 * backend/gpu/kernels/dialect.h - one text for CUDA, Metal and the CPU: its words, and the arithmetic they share
 *
 * A kernel is C without recursion, function pointers or heap. What differs between the targets is behind
 * these words, defined by prelude_{cuda,metal,c}.h, which is included before this file:
 *
 *   KERNEL(name, args) { ... }     a kernel; its arguments are `a`
 *   KERNEL_WITH(n, name, args)     the same with up to n registers a thread, where the compiler would rather spill
 *   DEVICE LOCAL PRIVATE           address space of a pointer: global memory, shared memory, the thread's own
 *   SHARED(T, name, n)             an array that the group shares; never initialised
 *   BARRIER() SIMD_BARRIER()       all threads of the group, or of the simdgroup of 32, meet; shared memory
 *                                  written before is seen after. Every thread must come to the same one
 *   GROUP_X GROUP_Y THREAD THREADS LANE SIMD    which group; thread in group, of how many; lane in
 *                                  simdgroup; simdgroup in group
 *   lane_xor, lane_xor_i           the value of lane LANE ^ mask; all 32 lanes call together
 *   FMA SQRT ABS, f32_bits bits_f32, half_f32 f32_half    rounded once, as in IEEE 754
 *   dot4(a, b, sum)                four int8 products, exact
 *   tile_dot32, tile_dot16         linear.h
 *
 * THE CONTRACT of kernels/kernels.h holds here too: the same operations in the same order, so a GPU gives
 * the CPU's bits (where it keeps denormals). The emulator's tests ask for exactly that.
 */
#ifndef TILE_STRIDE
#error "tile.h comes before the prelude"
#endif

/* ---- elementary functions: the polynomials of kernels/ref/math.h ------------------------------------ */

#define NEVER          (-bits_f32(0x7f800000u))     /* -infinity */
#define ROUND_MAGIC    12582912.0f
#define X_ZERO         7.88860905e-31f              /* 2^-100: less counts as 0 where it would be divided by */

INLINE i32 round_int(float x) { return (i32)(f32_bits(x + ROUND_MAGIC) - f32_bits(ROUND_MAGIC)); }

INLINE float exp_f(float x)
{
    x = x > -88.1f ? x : -88.1f;
    x = x < 89.0f ? x : 89.0f;
    const float shifted = x * 1.44269502f + ROUND_MAGIC, n = shifted - ROUND_MAGIC;
    float r = FMA(n, -0.693359375f, x);
    r = FMA(n, 0.000212194442f, r);
    float p = 0.00139506022f;
    p = FMA(p, r, 0.00836895313f);
    p = FMA(p, r, 0.041666206f);
    p = FMA(p, r, 0.166665182f);
    p = FMA(p, r, 0.5f);
    p = FMA(p, r, 1.0f);
    p = FMA(p, r, 1.0f);
    return p * bits_f32((f32_bits(shifted) - f32_bits(ROUND_MAGIC) + 127u) << 23);
}

INLINE float with_sign_of(float v, float x) { return bits_f32((f32_bits(v) & 0x7fffffffu) | (f32_bits(x) & 0x80000000u)); }

INLINE float tanh_f(float x)
{
    const float u = x * x, size = ABS(x);
    float p = -0.00560391461f;
    p = FMA(p, u, 0.0205517206f);
    p = FMA(p, u, -0.0537141077f);
    p = FMA(p, u, 0.133311525f);
    p = FMA(p, u, -0.333332717f);
    const float small = FMA(x * u, p, x);
    const float large = 1.0f - 2.0f / (exp_f(size + size) + 1.0f);
    return size < 0.625f ? small : with_sign_of(large, x);
}

INLINE float erf_f(float x)
{
    const float size = ABS(x) < 4.0f ? ABS(x) : 4.0f;
    float p;
    if (size < 1.0f) {
        const float u = x * x;
        p = 7.88912294e-05f;
        p = FMA(p, u, -0.000802084222f);
        p = FMA(p, u, 0.00518953567f);
        p = FMA(p, u, -0.0268544443f);
        p = FMA(p, u, 0.112836003f);
        p = FMA(p, u, -0.37612626f);
        p = FMA(p, u, 1.12837911f);
        return x * p;
    }
    p = 0.000185573983f;
    p = FMA(p, size, -0.00293960702f);
    p = FMA(p, size, 0.0218053181f);
    p = FMA(p, size, -0.103037365f);
    p = FMA(p, size, -0.638225675f);
    p = FMA(p, size, -1.12704003f);
    p = FMA(p, size, -0.000353719777f);
    return with_sign_of(1.0f - exp_f(p), x);
}

/* ---- sixteen lanes ----------------------------------------------------------------------------------- */

/* The end of every sum16: the same tree, in each half of a simdgroup; all its lanes get the sum. */
INLINE float fold16(float v)
{
    v = v + lane_xor(v, 8);
    v = v + lane_xor(v, 4);
    v = v + lane_xor(v, 2);
    return v + lane_xor(v, 1);
}

INLINE float larger(float x, float y) { return x > y ? x : y; }

INLINE float max16(float v)
{
    v = larger(v, lane_xor(v, 8));
    v = larger(v, lane_xor(v, 4));
    v = larger(v, lane_xor(v, 2));
    return larger(v, lane_xor(v, 1));
}
INLINE float max32(float v)
{
    v = larger(v, lane_xor(v, 16));
    return max16(v);
}

#define CAT_(x, y) x##y
#define CAT(x, y)  CAT_(x, y)
