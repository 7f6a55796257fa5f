/*
 * backend/gpu/kernels/prelude_c.h - the dialect on the CPU: plain C over the emulator's fibers
 *
 * What each word means is said in dialect.h. Threads of a group are fibers of one OS thread (backend/emu/simt.h),
 * so shared memory is a static array and needs no lock beyond the emulator's own.
 */
#include "backend/emu/simt.h"
#include "format/quants.h"

#include <string.h>

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
#define INLINE           static inline
#define SHARED(T, name, n) static T name[n]
#define KERNEL(name, args) static void CAT(plp_k_, name)(const args a)
#define KERNEL_WITH(n, name, args) KERNEL(name, args)

#define BARRIER()        plp_simt_barrier(__LINE__)
#define SIMD_BARRIER()   plp_simt_barrier_simd(__LINE__)
#define GROUP_X          (plp_simt.group[0])
#define GROUP_Y          (plp_simt.group[1])
#define THREAD           ((u32)plp_simt.thread)
#define THREADS          ((u32)plp_simt.n_threads)
#define LANE             (THREAD & 31u)
#define SIMD             (THREAD >> 5)

#define FMA(a, b, c)     __builtin_fmaf(a, b, c)
#define SQRT(x)          __builtin_sqrtf(x)
#define ABS(x)           __builtin_fabsf(x)

static inline u32   f32_bits(float f)    { u32 u; memcpy(&u, &f, 4); return u; }
static inline float bits_f32(u32 u)      { float f; memcpy(&f, &u, 4); return f; }
static inline float half_f32(u16 h)      { return plp_f16_to_f32(h); }
static inline u16   f32_half(float f)    { return plp_f32_to_f16(f); }
static inline float lane_xor(float v, u32 mask) { return bits_f32(plp_simt_xor(f32_bits(v), mask)); }
static inline i32   lane_xor_i(i32 v, u32 mask) { return (i32)plp_simt_xor((u32)v, mask); }
static inline i32   dot4(i32 a, i32 b, i32 sum)
{
    for (int i = 0; i < 32; i += 8)
        sum += (i8)((u32)a >> i) * (i8)((u32)b >> i);
    return sum;
}

/* Tiles without a matrix unit: integers as they are. */
typedef i8 tile_value;
#define TILE_PORTABLE 1
#define tile_put4(to, q) (*(i32 *)(to) = (q))
