/*
 * kernels/ref/ref.h - the plain-C tier's parts, and what all tiers ask about a weight type
 *
 * Each plp_fill_ref_* writes its file's entries of the table; plp_fill_ref (kernels.c) calls them all.
 */
#ifndef PLP_KERNELS_REF_REF_H
#define PLP_KERNELS_REF_REF_H

#include "kernels/kernels.h"

void plp_fill_ref_linear(plp_kernels *k);
void plp_fill_ref_vector(plp_kernels *k);       /* norms, rope, activations, add, scale */
void plp_fill_ref_attention(plp_kernels *k);
void plp_fill_ref_sealed(plp_kernels *k);

/* A block of activations whose largest magnitude is below this counts as zero: 127 / amax could
 * overflow, and nothing a model computes is that small. */
#define PLP_X_ZERO 0x1p-100f

/* attn_f16_run by a tier's own attn_f16, one block after the other. */
typedef void plp_attend_fn(plp_attn *a, const void *tile, uint32_t block_len, plp_seen seen, const void *next);
size_t plp_attn_in_turn_work(uint32_t n_q, uint32_t head_dim);
void   plp_attn_in_turn(plp_attend_fn *attend_block, plp_attn *a, const void *const *tiles, uint32_t block_len, plp_seen seen, void *work);

/* PLP_FORM_* of a type in quants.def. */
static inline int plp_type_form(int32_t type)
{
    switch (type) {
#define QUANT(id, NAME, len, bytes, form) case PLP_TYPE_##NAME: return PLP_FORM_##form;
#include "format/quants.def"
#undef QUANT
    }
    return PLP_FORM_FLT;
}

#endif
