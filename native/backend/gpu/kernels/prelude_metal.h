/*
 * backend/gpu/kernels/prelude_metal.h - the dialect in the Metal Shading Language (3.0: pointers in structures)
 *
 * What each word means is said in dialect.h. Compiled without fast math: what may fuse says FMA.
 */
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

typedef uchar  u8;
typedef char   i8;
typedef ushort u16;
typedef short  i16;
typedef uint   u32;
typedef int    i32;
typedef ulong  u64;

#define DEVICE           device
#define LOCAL            threadgroup
#define PRIVATE          thread
#define INLINE           static inline
#define SHARED(T, name, n) threadgroup T name[n]
#define KERNEL(name, args) kernel void CAT(plp_k_, name)(constant args &a [[buffer(0)]],                                    \
    uint3 t_group [[threadgroup_position_in_grid]], uint3 t_threads [[threads_per_threadgroup]],             \
    uint t_thread [[thread_index_in_threadgroup]], uint t_lane [[thread_index_in_simdgroup]],                \
    uint t_simd [[simdgroup_index_in_threadgroup]])
#define KERNEL_WITH(n, name, args) KERNEL(name, args)

#define BARRIER()        threadgroup_barrier(mem_flags::mem_threadgroup)
#define SIMD_BARRIER()   simdgroup_barrier(mem_flags::mem_threadgroup)
#define GROUP_X          (t_group.x)
#define GROUP_Y          (t_group.y)
#define THREAD           (t_thread)
#define THREADS          (t_threads.x)
#define LANE             (t_lane)
#define SIMD             (t_simd)

#define FMA(a, b, c)     fma(a, b, c)
#define SQRT(x)          precise::sqrt(x)
#define ABS(x)           fabs(x)

INLINE u32   f32_bits(float f)    { return as_type<u32>(f); }
INLINE float bits_f32(u32 u)      { return as_type<float>(u); }
INLINE float half_f32(u16 h)      { return float(as_type<half>(h)); }
INLINE u16   f32_half(float f)    { return as_type<u16>(half(f)); }
INLINE float lane_xor(float v, u32 mask) { return simd_shuffle_xor(v, u16(mask)); }
INLINE i32   lane_xor_i(i32 v, u32 mask) { return simd_shuffle_xor(v, u16(mask)); }
INLINE i32   dot4(i32 a, i32 b, i32 sum)
{
    const char4 x = as_type<char4>(a), y = as_type<char4>(b);
    return sum + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}

/* Tiles: halves hold int8 values exactly, and 32 products of them stay below 2^24, so f32 sums are exact. */
typedef half tile_value;
#define TILE_PORTABLE 0
INLINE void tile_put4(threadgroup half *to, i32 q)
{
    const char4 v = as_type<char4>(q);
    to[0] = half(v.x), to[1] = half(v.y), to[2] = half(v.z), to[3] = half(v.w);
}
INLINE void tile_dot(threadgroup const half *w, threadgroup const half *x, threadgroup float *scratch, u32 steps, u32 lane, thread i32 *d)
{
    simdgroup_float8x8 top = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), bottom = top;
    for (u32 s = 0; s < steps; s++) {
        simdgroup_half8x8 a0, a1, b;
        simdgroup_load(a0, w + s * 8, TILE_STRIDE);
        simdgroup_load(a1, w + 8 * TILE_STRIDE + s * 8, TILE_STRIDE);
        simdgroup_load(b, x + s * 8, TILE_STRIDE, 0, true);
        simdgroup_multiply_accumulate(top, a0, b, top);
        simdgroup_multiply_accumulate(bottom, a1, b, bottom);
    }
    simdgroup_store(top, scratch, 8);
    simdgroup_store(bottom, scratch + 64, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (u32 e = 0; e < 4; e++)
        d[e] = i32(scratch[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2]);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}
#define tile_dot32(w, x, scratch, d) tile_dot(w, x, scratch, 4, LANE, d)
#define tile_dot16(w, x, scratch, d) tile_dot(w, x, scratch, 2, LANE, d)
