/*
 * backend/gpu/kernels/prelude_cuda.h - the dialect in CUDA
 *
 * What each word means is said in dialect.h. Compiled with -fmad=false: what may fuse says FMA.
 */
#include <cuda_fp16.h>
#include <stdint.h>

typedef uint8_t  u8;
typedef int8_t   i8;
typedef uint16_t u16;
typedef int16_t  i16;
typedef uint32_t u32;
typedef int32_t  i32;
typedef uint64_t u64;

#define DEVICE
#define LOCAL
#define PRIVATE
#define INLINE           static __device__ __forceinline__
#define SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define KERNEL_AS(bounds, name, args) extern "C" __global__ void bounds CAT(plp_k_, name)(const __grid_constant__ args a)
#define KERNEL(name, args) KERNEL_AS(__launch_bounds__(PLP_GPU_THREADS), name, args)
/* Told nothing but the threads, ptxas aims at occupancy and spills with half of the registers unused. */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define KERNEL_WITH(n, name, args) KERNEL_AS(__maxnreg__(n), name, args)
#else
#define KERNEL_WITH(n, name, args) KERNEL(name, args)
#endif

#define BARRIER()        __syncthreads()
#define SIMD_BARRIER()   __syncwarp()
#define GROUP_X          (blockIdx.x)
#define GROUP_Y          (blockIdx.y)
#define THREAD           (threadIdx.x)
#define THREADS          (blockDim.x)
#define LANE             (threadIdx.x & 31u)
#define SIMD             (threadIdx.x >> 5)

#define FMA(a, b, c)     __fmaf_rn(a, b, c)
#define SQRT(x)          __fsqrt_rn(x)
#define ABS(x)           fabsf(x)

INLINE u32   f32_bits(float f)    { return __float_as_uint(f); }
INLINE float bits_f32(u32 u)      { return __uint_as_float(u); }
INLINE float half_f32(u16 h)      { return __half2float(__ushort_as_half(h)); }
INLINE u16   f32_half(float f)    { return __half_as_ushort(__float2half_rn(f)); }
INLINE float lane_xor(float v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
INLINE i32   lane_xor_i(i32 v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
INLINE i32   dot4(i32 a, i32 b, i32 sum) { return __dp4a(a, b, sum); }

/* Tiles: int8 matrix units from sm_80 on. A lane's registers follow the PTX manual's fragments of
 * mma.m16n8k32 and .m16n8k16: four consecutive k of row lane / 4, and of token lane / 4. */
typedef i8 tile_value;
#define tile_put4(to, q) (*(i32 *)(to) = (q))
#if __CUDA_ARCH__ >= 800
#define TILE_PORTABLE 0
INLINE u32 tile_word(const i8 *row, u32 k) { return *(const u32 *)(row + k); }

INLINE void tile_dot32(const i8 *w, const i8 *x, float *scratch, i32 *d)
{
    const u32 row = LANE / 4, k = LANE % 4 * 4;
    const u32 a0 = tile_word(w + row * TILE_STRIDE, k),      a1 = tile_word(w + (row + 8) * TILE_STRIDE, k);
    const u32 a2 = tile_word(w + row * TILE_STRIDE, k + 16), a3 = tile_word(w + (row + 8) * TILE_STRIDE, k + 16);
    const u32 b0 = tile_word(x + row * TILE_STRIDE, k),      b1 = tile_word(x + row * TILE_STRIDE, k + 16);
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(0));
}

INLINE void tile_dot16(const i8 *w, const i8 *x, float *scratch, i32 *d)
{
    const u32 row = LANE / 4, k = LANE % 4 * 4;
    const u32 a0 = tile_word(w + row * TILE_STRIDE, k), a1 = tile_word(w + (row + 8) * TILE_STRIDE, k);
    const u32 b0 = tile_word(x + row * TILE_STRIDE, k);
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b0), "r"(0));
}
#else
#define TILE_PORTABLE 1
#endif
