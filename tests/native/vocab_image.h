/*
 * vocab_image.h - small vocabularies as GGUF files in memory, sound and damaged, for the checks
 *
 *   image g = { 0 };
 *   vocab_begin(&g, "gpt2");
 *   vocab_str(&g, "pre", "smollm");                    tokenizer.ggml.pre
 *   vocab_strings(&g, "tokens", n, texts);
 *   plp_vocab *v = vocab_end(&g, &err);                NULL: refused, err says why
 */
#ifndef VOCAB_IMAGE_H
#define VOCAB_IMAGE_H

#include "base/mem.h"
#include "check.h"
#include "format/gguf.h"
#include "gguf_image.h"

static uint64_t vocab_n_meta;

static inline const char *vocab_key(const char *name)
{
    static char key[96];
    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    return key;
}

static inline void vocab_str(image *g, const char *name, const char *v) { vocab_n_meta++; image_str(g, vocab_key(name), v); }
static inline void vocab_u32(image *g, const char *name, uint32_t v) { vocab_n_meta++; image_u32(g, vocab_key(name), v); }
static inline void vocab_bool(image *g, const char *name, bool v)
{
    vocab_n_meta++;
    image_key(g, vocab_key(name), PLP_META_BOOL);
    image_put(g, &(uint8_t){ v }, 1);
}
static inline void vocab_strings(image *g, const char *name, uint32_t n, const char *const *texts)
{
    vocab_n_meta++;
    image_array(g, vocab_key(name), PLP_META_STRING, n);
    for (uint32_t i = 0; i < n; i++)
        image_text(g, texts[i]);
}
static inline void vocab_values(image *g, const char *name, uint32_t type, uint32_t n, const void *data, size_t size)
{
    vocab_n_meta++;
    image_array(g, vocab_key(name), type, n);
    image_put(g, data, n * size);
}
static inline void vocab_begin(image *g, const char *model)
{
    image_head(g, 3, 0, 0);
    vocab_n_meta = 0;
    if (model)
        vocab_str(g, "model", model);
}
static inline plp_vocab *vocab_end(image *g, plp_error *err)
{
    plp_file *f = NULL;
    plp_vocab *v = NULL;
    uint8_t *copy;

    memcpy(g->bytes + 16, &vocab_n_meta, 8);
    copy = guarded(g->n);                   /* a read past the file's end dies at once */
    memcpy(copy, g->bytes, g->n);
    *err = (plp_error){ 0 };
    if (plp_file_parse(&f, copy, g->n, PLP_FILE_LENIENT, err))
        printf("image: %s\n", err->msg);
    else if (plp_vocab_open(&v, f, err))
        v = NULL;
    plp_file_close(f);
    unguard(copy, g->n);                    /* a vocabulary keeps nothing of the file */
    return v;
}

/* The 256 byte pieces of GPT-2's alphabet, spelled. */
static inline const char *vocab_byte_piece(int byte)
{
    static char pieces[256][3];             /* UTF-8 */
    int c = byte;
    if (byte <= 0x20) c = 0x100 + byte;
    else if (byte >= 0x7f && byte <= 0xa0) c = 0x100 + 33 + byte - 0x7f;
    else if (byte == 0xad) c = 0x143;
    if (c < 0x80) { pieces[byte][0] = (char)c; pieces[byte][1] = 0; }
    else { pieces[byte][0] = (char)(0xc0 | c >> 6); pieces[byte][1] = (char)(0x80 | (c & 63)); pieces[byte][2] = 0; }
    return pieces[byte];
}

#endif
