/*
 * format/quants.c - tensor types by id, half precision, and the plain block formats in f32
 *
 * Plain: floats, and blocks whose values are integers times scales. Formats that look their values
 * up (IQ*, TQ*, FP4) are in quants_codebook.c.
 *
 * Source   GGUF specification and gguf-py's quants.py for the layouts
 * Threads  pure functions: any
 */
#include "format/quants_rows.h"

#include <inttypes.h>

/* ---- what is known about types ------------------------------------------------------------ */

static const plp_type_info types[] = {
#define QUANT(id, NAME, len, bytes, form) { id, #NAME, len, bytes, PLP_FORM_##form, plp_dequantize_##NAME },
#include "format/quants.def"
#undef QUANT
};

/* Sound in a file, but no weights: they are listed and measured, not dequantised. */
static const struct { int32_t id; const char *name; uint16_t block_len, block_bytes; } others[] = {
    {  9, "Q8_1",  32,  40 }, { 15, "Q8_K", 256, 292 }, { 24, "I8",     1,   1 }, { 25, "I16", 1, 2 },
    { 26, "I32",    1,   4 }, { 27, "I64",    1,   8 }, { 28, "F64",    1,   8 }, { 41, "Q1_0", 128, 18 },
};

/* Ids that stand in files nobody should have to guess about; their layout is not known here. */
static const struct { int32_t first, last; const char *name; } foreign[] = {
    {   4,   4, "Q4_2, removed from the format" },
    {   5,   5, "Q4_3, removed from the format" },
    {  31,  31, "Q4_0_4_4, removed from the format: use Q4_0" },
    {  32,  32, "Q4_0_4_8, removed from the format: use Q4_0" },
    {  33,  33, "Q4_0_8_8, removed from the format: use Q4_0" },
    {  36,  36, "IQ4_NL_4_4, removed from the format, or BitNet's own I2_S" },
    {  37,  37, "IQ4_NL_4_8, removed from the format: use IQ4_NL" },
    {  38,  38, "IQ4_NL_8_8, removed from the format, or BitNet's own TL1" },
    {  97,  99, "a type of the ik_llama.cpp project" },
    { 133, 158, "a type of the ik_llama.cpp project" },
    { 200, 399, "a repacked type of the ik_llama.cpp project" },
};
#define COUNT(a) (sizeof (a) / sizeof *(a))

const plp_type_info *plp_type_get(int32_t id)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

const char *plp_type_name(int32_t id)
{
    const plp_type_info *t = plp_type_get(id);

    if (t) return t->name;
    for (size_t i = 0; i < COUNT(others); i++)
        if (others[i].id == id) return others[i].name;
    for (size_t i = 0; i < COUNT(foreign); i++)
        if (id >= foreign[i].first && id <= foreign[i].last) return foreign[i].name;
    return "unknown";
}

bool plp_type_geometry(int32_t id, uint32_t *block_len, uint32_t *block_bytes)
{
    const plp_type_info *t = plp_type_get(id);

    if (t) {
        *block_len = t->block_len;
        *block_bytes = t->block_bytes;
        return true;
    }
    for (size_t i = 0; i < COUNT(others); i++)
        if (others[i].id == id) {
            *block_len = others[i].block_len;
            *block_bytes = others[i].block_bytes;
            return true;
        }
    return false;
}

plp_status plp_dequantize(int32_t type, const void *src, float *dst, uint64_t k, plp_error *err)
{
    const plp_type_info *t = plp_type_get(type);

    if (!t) return plp_fail(err, PLP_E_UNSUPPORTED, "type %d (%s) cannot be dequantised", type, plp_type_name(type));
    if (k % t->block_len || k > SIZE_MAX / sizeof *dst)
        return plp_fail(err, PLP_E_ARG, "a row of %" PRIu64 " values; %s needs a multiple of %u", k, t->name, t->block_len);
    t->dequantize(src, dst, (size_t)k);
    return PLP_OK;
}

/* ---- half precision ----------------------------------------------------------------------- */

static float bits_f32(uint32_t u) { float f; memcpy(&f, &u, sizeof f); return f; }
static uint32_t f32_bits(float f) { uint32_t u; memcpy(&u, &f, sizeof u); return u; }

/* Subnormals by one exact subtraction of normal numbers: an application that flushes denormals to
 * zero does not change the result. */
float plp_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, body = (uint32_t)(h & 0x7fff) << 13;

    if (body >= 0x7c00u << 13) return bits_f32(sign | 0x7f800000u | body);
    if (body < 0x0400u << 13) return bits_f32(sign | f32_bits(bits_f32((113u << 23) | body) - bits_f32(113u << 23)));
    return bits_f32(sign | (body + (112u << 23)));
}

uint16_t plp_f32_to_f16(float f)
{
    const uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;

    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);      /* 65520 and up round to infinity */
    if (a < 0x38800000) {                                       /* below 2^-14: the unit is 2^-24 */
        const uint32_t shift = 126 - (a >> 23);                 /* of the 24-bit significand */
        if (shift > 24) return (uint16_t)sign;
        const uint32_t m = (a & 0x7fffff) | 0x800000, half = 1u << (shift - 1), odd = m >> shift & 1;
        return (uint16_t)(sign | (m + half - 1 + odd) >> shift);
    }
    return (uint16_t)(sign | (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13);
}

/* ---- floats ------------------------------------------------------------------------------- */

void plp_dequantize_F32(const void *src, float *dst, size_t k) { memcpy(dst, src, k * sizeof *dst); }

void plp_dequantize_F16(const void *src, float *dst, size_t k)
{
    for (size_t i = 0; i < k; i++) dst[i] = plp_f16_at((const uint8_t *)src + 2 * i);
}

void plp_dequantize_BF16(const void *src, float *dst, size_t k)
{
    for (size_t i = 0; i < k; i++) dst[i] = bits_f32((uint32_t)plp_u16_at((const uint8_t *)src + 2 * i) << 16);
}

/* ---- blocks of 32: one scale, perhaps one minimum ----------------------------------------- */

/* [d f16][16 bytes: low nibbles are values 0..15, high nibbles 16..31] */
void plp_dequantize_Q4_0(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 18, dst += 32) {
        const float d = plp_f16_at(b);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((b[2 + i] & 15) - 8);
            dst[i + 16] = d * (float)((b[2 + i] >> 4) - 8);
        }
    }
}

/* [d f16][m f16][16 bytes of nibbles] */
void plp_dequantize_Q4_1(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 20, dst += 32) {
        const float d = plp_f16_at(b), m = plp_f16_at(b + 2);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)(b[4 + i] & 15) + m;
            dst[i + 16] = d * (float)(b[4 + i] >> 4) + m;
        }
    }
}

/* [d f16][32 fifth bits][16 bytes of nibbles] */
void plp_dequantize_Q5_0(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 22, dst += 32) {
        const float d = plp_f16_at(b);
        const uint32_t high = plp_u32_at(b + 2);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((int)((b[6 + i] & 15) | (high >> i & 1) << 4) - 16);
            dst[i + 16] = d * (float)((int)(b[6 + i] >> 4 | (high >> (i + 16) & 1) << 4) - 16);
        }
    }
}

/* [d f16][m f16][32 fifth bits][16 bytes of nibbles] */
void plp_dequantize_Q5_1(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 24, dst += 32) {
        const float d = plp_f16_at(b), m = plp_f16_at(b + 2);
        const uint32_t high = plp_u32_at(b + 4);
        for (int i = 0; i < 16; i++) {
            dst[i] = d * (float)((b[8 + i] & 15) | (high >> i & 1) << 4) + m;
            dst[i + 16] = d * (float)(b[8 + i] >> 4 | (high >> (i + 16) & 1) << 4) + m;
        }
    }
}

/* [d f16][32 int8] */
void plp_dequantize_Q8_0(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 32, b += 34, dst += 32) {
        const float d = plp_f16_at(b);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)(int8_t)b[2 + i];
    }
}

/* ---- blocks of 256: scales of scales ------------------------------------------------------ */

/* [16 bytes: scale low, minimum high nibble, per 16][64 bytes of 2 bits][d f16][dmin f16]
 * Byte i of 32 holds values i, i + 32, i + 64, i + 96, lowest bits first; then the next 128. */
void plp_dequantize_Q2_K(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 84, dst += 256) {
        const float d = plp_f16_at(b + 80), dmin = plp_f16_at(b + 82);
        for (int g = 0; g < 16; g++) {
            const float dl = d * (float)(b[g] & 15), ml = dmin * (float)(b[g] >> 4);
            const uint8_t *q = b + 16 + g / 8 * 32 + g % 2 * 16;
            for (int i = 0; i < 16; i++) dst[16 * g + i] = dl * (float)(q[i] >> (g % 8 / 2 * 2) & 3) - ml;
        }
    }
}

/* [32 bytes: third bits, 0 means minus 4][64 bytes of 2 bits, as Q2_K][12 bytes: 16 6-bit scales][d f16]
 * Scale g: low 4 bits in nibble g / 8 of byte g % 8, high 2 in bits 2 * (g / 4) of byte 8 + g % 4. */
void plp_dequantize_Q3_K(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 110, dst += 256) {
        const float d = plp_f16_at(b + 108);
        const uint8_t *scales = b + 96;
        for (int g = 0; g < 16; g++) {
            const int scale = (scales[g % 8] >> (g / 8 * 4) & 15) | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
            const float dl = d * (float)(scale - 32);
            const uint8_t *low = b + 32 + g / 8 * 32 + g % 2 * 16, *high = b + g % 2 * 16;
            for (int i = 0; i < 16; i++) {
                const int q = (low[i] >> (g % 8 / 2 * 2) & 3) - (high[i] >> (g / 2) & 1 ? 0 : 4);
                dst[16 * g + i] = dl * (float)q;
            }
        }
    }
}

/* 12 bytes hold 8 6-bit scales and minimums: 0..3 in bytes 0..3 and 4..7; of 4..7 the low 4 bits
 * are in bytes 8..11 and the high 2 on top of bytes 0..3 and 4..7. */
static void scale_min(const uint8_t *p, int g, float *scale, float *min)
{
    if (g < 4) {
        *scale = (float)(p[g] & 63);
        *min = (float)(p[g + 4] & 63);
    } else {
        *scale = (float)((p[g + 4] & 15) | (p[g - 4] >> 6) << 4);
        *min = (float)(p[g + 4] >> 4 | (p[g] >> 6) << 4);
    }
}

/* [d f16][dmin f16][12 bytes: scales and minimums][128 bytes of nibbles]
 * 32 bytes hold 64 values: low nibbles the first 32, high nibbles the next. */
void plp_dequantize_Q4_K(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 144, dst += 256) {
        const float d = plp_f16_at(b), dmin = plp_f16_at(b + 2);
        for (int g = 0; g < 8; g++) {
            const uint8_t *q = b + 16 + g / 2 * 32;
            float scale, min;
            scale_min(b + 4, g, &scale, &min);
            const float dl = d * scale, ml = dmin * min;
            for (int i = 0; i < 32; i++) dst[32 * g + i] = dl * (float)(q[i] >> (g % 2 * 4) & 15) - ml;
        }
    }
}

/* As Q4_K with [32 bytes: fifth bits, bit g of byte i for value 32 g + i] before the nibbles */
void plp_dequantize_Q5_K(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 176, dst += 256) {
        const float d = plp_f16_at(b), dmin = plp_f16_at(b + 2);
        for (int g = 0; g < 8; g++) {
            const uint8_t *high = b + 16, *low = b + 48 + g / 2 * 32;
            float scale, min;
            scale_min(b + 4, g, &scale, &min);
            const float dl = d * scale, ml = dmin * min;
            for (int i = 0; i < 32; i++)
                dst[32 * g + i] = dl * (float)((low[i] >> (g % 2 * 4) & 15) | (high[i] >> g & 1) << 4) - ml;
        }
    }
}

/* [128 bytes: low nibbles][64 bytes: high 2 bits][16 int8 scales, one per 16][d f16]
 * Each half of 128 values: byte i of 64 has the low bits of values i and i + 64, byte i of 32 the
 * high bits of i, i + 32, i + 64, i + 96. */
void plp_dequantize_Q6_K(const void *src, float *dst, size_t k)
{
    const uint8_t *b = src;
    for (; k; k -= 256, b += 210, dst += 256) {
        const float d = plp_f16_at(b + 208);
        for (int i = 0; i < 256; i++) {
            const int half = i / 128, in = i % 128;
            const int low = b[half * 64 + in % 64] >> (in / 64 * 4) & 15;
            const int high = b[128 + half * 32 + in % 32] >> (in / 32 * 2) & 3;
            dst[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}
