/*
 * kernels/arm/arm.h - the three ARM tiers, and the parts they are put together from
 *
 * plp_fill_* overwrite what the tier does better than the one before. "dotprod" and "i8mm" bring integer
 * products only: all else is bound by float arithmetic or memory. What compilers vectorise well by themselves
 * (add, scale, attn_merge, attn_finish: NEON is part of every aarch64) stays with ref/.
 */
#ifndef PLP_KERNELS_ARM_ARM_H
#define PLP_KERNELS_ARM_ARM_H

#include "kernels/kernels.h"

/* linear_f may dequantise this many rows at once: the tiers' linear_work leaves that much room, in f32. */
#define PLP_ARM_FLOAT_ROWS 4u

void plp_fill_neon(plp_kernels *k);         /* needs PLP_CPU_NEON */
void plp_fill_dotprod(plp_kernels *k);      /* PLP_CPU_DOTPROD, PLP_CPU_FP16 */
void plp_fill_i8mm(plp_kernels *k);         /* those and PLP_CPU_I8MM */

void plp_fill_neon_linear(plp_kernels *k);  /* x_bytes, x_pack, linear_work, linear */
void plp_fill_neon_float(plp_kernels *k);   /* linear_f */
void plp_fill_neon_attention(plp_kernels *k);   /* kv_put, attn_f16, attn_f16_run */
void plp_fill_neon_seal(plp_kernels *k);    /* kv_seal_q8, kv_seal_q4 */
void plp_fill_neon_sealed(plp_kernels *k);  /* attn_q8, attn_q4 */
void plp_fill_dotprod_sealed(plp_kernels *k);

/* attn_f16_run for many queries, block_len % 16 == 0 (neon_run.c), and its work. */
void   plp_neon_run(plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work);
size_t plp_neon_run_work(uint32_t head_dim);

#endif
