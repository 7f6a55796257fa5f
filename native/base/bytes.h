/*
 * base/bytes.h - numbers as they lie in files: little-endian, at any address
 *
 * This library runs on little-endian machines alone (format/gguf.c refuses others), so a number is its bytes.
 */
#ifndef PLP_BASE_BYTES_H
#define PLP_BASE_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint16_t plp_u16_at(const void *p) { uint16_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint32_t plp_u32_at(const void *p) { uint32_t v; memcpy(&v, p, sizeof v); return v; }
static inline uint64_t plp_u64_at(const void *p) { uint64_t v; memcpy(&v, p, sizeof v); return v; }

#endif
