/*
 * format/quants_rows.h - the dequantisers behind plp_type_info, one per line of quants.def
 *
 * Each turns k / block_len blocks at src (any alignment) into k floats, with the operations and the
 * order of gguf-py's quants.py, so that the results are equal bit for bit.
 */
#ifndef PLP_FORMAT_QUANTS_ROWS_H
#define PLP_FORMAT_QUANTS_ROWS_H

#include "format/quants.h"

#include <string.h>

#define QUANT(id, NAME, len, bytes, form) void plp_dequantize_##NAME(const void *src, float *dst, size_t k);
#include "format/quants.def"
#undef QUANT

/* Blocks have odd sizes, so nothing in them is aligned. */
static inline uint16_t plp_load_u16(const uint8_t *p) { uint16_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint32_t plp_load_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
static inline float    plp_load_f16(const uint8_t *p) { return plp_f16_to_f32(plp_load_u16(p)); }

#endif
