/*
 * format/quants_rows.h - the dequantisers behind plp_type_info, one per line of quants.def
 *
 * Each turns k / block_len blocks at src (any alignment) into k floats, with the operations and the
 * order of gguf-py's quants.py, so that the results are equal bit for bit.
 */
#ifndef PLP_FORMAT_QUANTS_ROWS_H
#define PLP_FORMAT_QUANTS_ROWS_H

#include "base/bytes.h"
#include "format/quants.h"

#define QUANT(id, NAME, len, bytes, form) void plp_dequantize_##NAME(const void *src, float *dst, size_t k);
#include "format/quants.def"
#undef QUANT

static inline float plp_f16_at(const uint8_t *p) { return plp_f16_to_f32(plp_u16_at(p)); }

#endif
