/*
 * format/quants.h - tensor types: sizes, names, and exact rows in f32
 *
 * Source   GGUF specification; gguf-py's quants.py, which the tests compare with bit for bit.
 * Shape    a row of k values is k / block_len blocks, back to back.
 */
#ifndef PLP_FORMAT_QUANTS_H
#define PLP_FORMAT_QUANTS_H

#include "base/status.h"

#include <string.h>

enum plp_quant_form { PLP_FORM_FLT, PLP_FORM_SYM, PLP_FORM_MIN, PLP_FORM_SUB, PLP_FORM_MN2 };

typedef enum plp_type {
#define QUANT(id, NAME, len, bytes, form) PLP_TYPE_##NAME = id,
#include "format/quants.def"
#undef QUANT
} plp_type;

typedef struct plp_type_info {
    int32_t     id;
    const char *name;
    uint32_t    block_len, block_bytes;
    int         form;                       /* plp_quant_form */
    void      (*dequantize)(const void *src, float *dst, size_t k);   /* k % block_len == 0 */
} plp_type_info;

/* NULL for a type that is not in the list. */
const plp_type_info *plp_type_get(int32_t id);
/* What is known about any id, for messages: "Q2_K", "Q4_0_4_4 (removed from the format)", "unknown". */
const char *plp_type_name(int32_t id);
/* Block geometry of every type the specification names, also those that are not run; false if unknown. */
bool plp_type_geometry(int32_t id, uint32_t *block_len, uint32_t *block_bytes);

float    plp_f16_to_f32(uint16_t h);
uint16_t plp_f32_to_f16(float f);           /* round to nearest even; NaN stays NaN */

/* What a nibble stands for in IQ4_NL and IQ4_XS, and in FP4, doubled. */
extern const int8_t plp_iq4_values[16], plp_fp4_values[16];

/* The scale of MXFP4, 2^(e - 127), halved for the doubled values. */
static inline float plp_half_e8m0(uint32_t e)
{
    const uint32_t bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

#endif
