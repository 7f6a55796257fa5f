/*
 * gguf_image.h - write small GGUF files into memory, sound ones and damaged ones, for the checks
 *
 *   image g = { 0 };
 *   image_head(&g, 3, 1, 2);
 *   image_u32(&g, "general.alignment", 32); image_str(&g, "general.architecture", "llama");
 *   image_tensor(&g, "t", 2, (uint64_t[]){ 32, 4 }, PLP_TYPE_F32, 0);
 *   image_pad(&g, 32); image_fill(&g, 512);
 *
 * Every piece can be written with a wrong count, because each call puts out just its own bytes.
 */
#ifndef GGUF_IMAGE_H
#define GGUF_IMAGE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct image { uint8_t *bytes; size_t n, cap; } image;

static void image_put(image *g, const void *data, size_t n)
{
    if (g->cap - g->n < n) {
        g->cap = (g->cap + n) * 2;
        g->bytes = realloc(g->bytes, g->cap);
    }
    memcpy(g->bytes + g->n, data, n);
    g->n += n;
}
static void image_32(image *g, uint32_t v) { image_put(g, &v, 4); }
static void image_64(image *g, uint64_t v) { image_put(g, &v, 8); }
static void image_text(image *g, const char *s) { image_64(g, strlen(s)); image_put(g, s, strlen(s)); }

static void image_head(image *g, uint32_t version, uint64_t n_tensors, uint64_t n_meta)
{
    g->n = 0;
    image_put(g, "GGUF", 4);
    image_32(g, version);
    image_64(g, n_tensors);
    image_64(g, n_meta);
}
/* A key and its type; the value follows by image_put. */
static void image_key(image *g, const char *key, uint32_t type) { image_text(g, key); image_32(g, type); }
static inline void image_array(image *g, const char *key, uint32_t elem_type, uint64_t n)
{
    image_key(g, key, 9);
    image_32(g, elem_type);
    image_64(g, n);
}
static void image_u32(image *g, const char *key, uint32_t v) { image_key(g, key, 4); image_32(g, v); }
static void image_str(image *g, const char *key, const char *v) { image_key(g, key, 8); image_text(g, v); }
static inline void image_tensor(image *g, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    image_text(g, name);
    image_32(g, n_dims);
    image_put(g, dims, 8 * n_dims);
    image_32(g, type);
    image_64(g, offset);
}
static inline void image_fill(image *g, size_t n)
{
    for (size_t i = 0; i < n; i++) image_put(g, &(uint8_t){ (uint8_t)(i * 37 + g->n) }, 1);
}
static inline void image_pad(image *g, size_t alignment) { while (g->n % alignment) image_put(g, "", 1); }

#endif
