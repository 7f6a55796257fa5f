/*
 * format/quants_codebook.c - block formats whose values come out of a table: IQ*, TQ*, FP4
 *
 * Source   gguf-py's quants.py for layouts and grids (quant_grids.h is made from it);
 *          OCP Microscaling specification 1.0 for MXFP4
 * Threads  pure functions: any
 */
#include "format/quants_rows.h"

#include "format/quant_grids.h"

/* Seven stored sign bits; the eighth makes their number even. */
static uint32_t even_signs(uint32_t seven) { return seven | (uint32_t)__builtin_parity(seven) << 7; }

/* dst[i] = d * value[i], negated where bit i of signs is set. The grids keep a value in 2 or 4 bits,
 * an entry's first value lowest; `map` says what the codes mean. */
static void grid_row(float *dst, int n, uint32_t codes, int bits, const int8_t *map, float d, uint32_t signs)
{
    for (int i = 0; i < n; i++) {
        const float v = d * (float)map[codes >> (i * bits) & ((1u << bits) - 1)];
        dst[i] = signs >> i & 1 ? -v : v;
    }
}

static const int8_t iq2_map[4] = { 0x08, 0x19, 0x2b, 0 };
static const int8_t iq3_xxs_map[8] = { 0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e };
static const int8_t iq3_s_map[8] = { 0x01, 0x03, 0x05, 0x07, 0x09, 0x0b, 0x0d, 0x0f };

/* [d f16] then per 32 values: [4 grid bytes][4 x 7 sign bits, 4 scale bits on top] */
void plp_dequantize_IQ2_XXS(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 66) {
        const float d = plp_f16_at(b);
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = b + 2 + 8 * g;
            const uint32_t word = plp_u32_at(q + 4);
            const float db = d * (0.5f + (float)(word >> 28)) * 0.25f;
            for (int j = 0; j < 4; j++, dst += 8)
                grid_row(dst, 8, plp_grid_iq2_xxs[q[j]], 2, iq2_map, db, even_signs(word >> 7 * j & 127));
        }
    }
}

/* [d f16][32 x u16: 9 grid bits, 7 sign bits][8 bytes: scale nibbles, one per 16 values] */
void plp_dequantize_IQ2_XS(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 74) {
        const float d = plp_f16_at(b);
        for (int j = 0; j < 32; j++, dst += 8) {
            const uint32_t q = plp_u16_at(b + 2 + 2 * j), scale = b[66 + j / 4] >> (j / 2 % 2 * 4) & 15;
            grid_row(dst, 8, plp_grid_iq2_xs[q & 511], 2, iq2_map, d * (0.5f + (float)scale) * 0.25f, even_signs(q >> 9));
        }
    }
}

/* [d f16][32 grid bytes][32 sign bytes][8 bytes: grid bits 8..9][8 bytes: scale nibbles] */
void plp_dequantize_IQ2_S(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 82) {
        const float d = plp_f16_at(b);
        for (int j = 0; j < 32; j++, dst += 8) {
            const uint32_t q = b[2 + j] | (uint32_t)(b[66 + j / 4] >> (j % 4 * 2) & 3) << 8;
            const uint32_t scale = b[74 + j / 4] >> (j / 2 % 2 * 4) & 15;
            grid_row(dst, 8, plp_grid_iq2_s[q], 2, iq2_map, d * (0.5f + (float)scale) * 0.25f, b[34 + j]);
        }
    }
}

/* [d f16][64 grid bytes] then per 32 values [4 x 7 sign bits, 4 scale bits on top] */
void plp_dequantize_IQ3_XXS(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 98) {
        const float d = plp_f16_at(b);
        for (int j = 0; j < 64; j++, dst += 4) {
            const uint32_t word = plp_u32_at(b + 66 + j / 8 * 4), signs = even_signs(word >> 7 * (j / 2 % 4) & 127);
            grid_row(dst, 4, plp_grid_iq3_xxs[b[2 + j]], 4, iq3_xxs_map, d * (0.5f + (float)(word >> 28)) * 0.5f,
                     signs >> j % 2 * 4);
        }
    }
}

/* [d f16][64 grid bytes][8 bytes: ninth grid bits][32 sign bytes][4 bytes: scale nibbles, one per 32] */
void plp_dequantize_IQ3_S(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 110) {
        const float d = plp_f16_at(b);
        for (int j = 0; j < 64; j++, dst += 4) {
            const uint32_t q = b[2 + j] | (uint32_t)(b[66 + j / 8] >> j % 8 & 1) << 8;
            const uint32_t scale = b[106 + j / 16] >> (j / 8 % 2 * 4) & 15;
            grid_row(dst, 4, plp_grid_iq3_s[q], 4, iq3_s_map, d * (float)(1 + 2 * scale), b[74 + j / 2] >> j % 2 * 4);
        }
    }
}

/* Eight values of IQ1: codes 0, 1, 2 mean -1, 0, 1; all are shifted by an eighth up or down. */
static void iq1_row(float *dst, uint32_t index, float d, bool down)
{
    const uint32_t codes = plp_grid_iq1[index];
    for (int i = 0; i < 8; i++) dst[i] = d * ((float)((int)(codes >> 2 * i & 3) - 1) + (down ? -0.125f : 0.125f));
}

/* [d f16][32 grid bytes][8 x u16: 4 x 3 grid bits, 3 scale bits, shift down] */
void plp_dequantize_IQ1_S(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 50) {
        const float d = plp_f16_at(b);
        for (int j = 0; j < 32; j++, dst += 8) {
            const uint32_t high = plp_u16_at(b + 34 + j / 4 * 2);
            iq1_row(dst, b[2 + j] | (high >> j % 4 * 3 & 7) << 8, d * (float)(2 * (high >> 12 & 7) + 1), high >> 15);
        }
    }
}

/* [32 grid bytes][16 bytes: nibbles of 3 grid bits and shift down][4 x u16: 4 x 3 scale bits, and on
 * top four bits of d, the first word's lowest] */
void plp_dequantize_IQ1_M(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 56) {
        uint32_t bits = 0;
        for (int i = 0; i < 4; i++) bits |= (uint32_t)(plp_u16_at(b + 48 + 2 * i) >> 12) << 4 * i;
        const float d = plp_f16_to_f32((uint16_t)bits);
        for (int j = 0; j < 32; j++, dst += 8) {
            const uint32_t high = b[32 + j / 2] >> j % 2 * 4, scale = plp_u16_at(b + 48 + j / 8 * 2) >> j / 2 % 4 * 3 & 7;
            iq1_row(dst, b[j] | (high & 7) << 8, d * (float)(2 * scale + 1), high >> 3 & 1);
        }
    }
}

const int8_t plp_iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t plp_fp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* n bytes: low nibbles are the first n values, high nibbles the next n. */
static void nibbles(float *dst, const uint8_t *q, int n, const int8_t *values, float d)
{
    for (int i = 0; i < n; i++) {
        dst[i] = d * (float)values[q[i] & 15];
        dst[i + n] = d * (float)values[q[i] >> 4];
    }
}

/* [d f16][16 bytes of nibbles] */
void plp_dequantize_IQ4_NL(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 18, dst += 32) nibbles(dst, b + 2, 16, plp_iq4_values, plp_f16_at(b));
}

/* [d f16][u16: 8 x high 2 scale bits][4 bytes: low scale nibbles][8 x 16 bytes of nibbles] */
void plp_dequantize_IQ4_XS(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 136) {
        const float d = plp_f16_at(b);
        const uint32_t high = plp_u16_at(b + 2);
        for (int g = 0; g < 8; g++, dst += 32) {
            const uint32_t scale = (b[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> 2 * g & 3) << 4;
            nibbles(dst, b + 8 + 16 * g, 16, plp_iq4_values, d * (float)((int)scale - 32));
        }
    }
}

/* Values i, i + n, i + 2n ... are base-3 digits of byte i, the most significant first; the byte is
 * the number scaled to fill 0..255, so that a digit is the carry of a multiplication by 3. */
static float *trits(float *dst, const uint8_t *q, int n, int digits, float d)
{
    static const uint8_t power[] = { 1, 3, 9, 27, 81 };
    for (int t = 0; t < digits; t++)
        for (int i = 0; i < n; i++) *dst++ = d * (float)(((uint8_t)(q[i] * power[t]) * 3 >> 8) - 1);
    return dst;
}

/* [32 bytes of 5 digits][16 bytes of 5][4 bytes of 4][d f16] */
void plp_dequantize_TQ1_0(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 54) {
        const float d = plp_f16_at(b + 52);
        dst = trits(dst, b, 32, 5, d);
        dst = trits(dst, b + 32, 16, 5, d);
        dst = trits(dst, b + 48, 4, 4, d);
    }
}

/* [64 bytes of 2 bits, as Q2_K][d f16] */
void plp_dequantize_TQ2_0(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 66, dst += 256) {
        const float d = plp_f16_at(b + 64);
        for (int i = 0; i < 256; i++) dst[i] = d * (float)((b[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - 1);
    }
}

/* [scale e8m0: 2^(e - 127), halved for the doubled values][16 bytes of nibbles] */
void plp_dequantize_MXFP4(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 17, dst += 32) nibbles(dst, b + 1, 16, plp_fp4_values, plp_half_e8m0(b[0]));
}

/* Scale of NVFP4, unsigned e4m3 with bias 7, halved for the doubled values. 0x7f is NaN in that
 * format and 0 here, as in gguf-py. */
static float ue4m3(uint32_t x)
{
    const int e = (int)(x >> 3 & 15);
    const float m = (float)(x & 7);
    if (x == 0x7f) return 0.0f;
    if (e == 0) return m * (1.0f / 512) * 0.5f;
    return (1.0f + m / 8.0f) * (e < 7 ? 1.0f / (float)(1 << (7 - e)) : (float)(1 << (e - 7))) * 0.5f;
}

/* [4 scales, one per 16][4 x 8 bytes of nibbles] */
void plp_dequantize_NVFP4(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 64, b += 36)
        for (int g = 0; g < 4; g++, dst += 16) nibbles(dst, b + 4 + 8 * g, 8, plp_fp4_values, ue4m3(b[g]));
}
