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
