/*
 * tests/native/tiny_model.h - a whole llama of two layers in a temporary file, for checks of the engine
 *
 * Width 64, 4 heads of 16 over 2 KV heads, feed-forward 96, 320 tokens without a tokenizer (ids only), Q8_0
 * matrices of a fixed seed. Its weights are random, so that every position's logits differ.
 */
#ifndef TINY_MODEL_H
#define TINY_MODEL_H

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"
#include "gguf_image.h"

enum { TINY_VOCAB = 320, TINY_WIDTH = 64, TINY_FF = 96, TINY_KV = 32, TINY_LAYERS = 2, TINY_LIMIT = 512 };

typedef struct tiny_tensor { char name[48]; uint64_t rows, k; } tiny_tensor;      /* rows 0: a vector of F32 ones */

static uint16_t tiny_scale = 0x1800;        /* of every block, an f16: 2^-9 */

static inline uint64_t tiny_bytes(const tiny_tensor *t) { return t->rows ? t->rows * t->k / 32 * 34 : t->k * 4; }

static inline void tiny_data(image *g, const tiny_tensor *t)
{
    for (uint64_t i = 0; t->rows == 0 && i < t->k; i++) image_put(g, &(float){ 1.0f + 0.1f * check_uniform() }, 4);
    for (uint64_t b = 0; b < t->rows * t->k / 32; b++) {
        const uint16_t scale = tiny_scale;
        int8_t q[32];
        for (int i = 0; i < 32; i++) q[i] = (int8_t)(check_random() % 255 - 127);
        image_put(g, &scale, 2);
        image_put(g, q, 32);
    }
}

/* Writes the model, whose layers see the last `window` tokens (0: all); `path` is at least 64 bytes. */
static inline void tiny_write_windowed(char *path, uint32_t window)
{
    tiny_tensor t[3 + 9 * TINY_LAYERS];
    image g = { 0 };
    uint64_t offset = 0;
    int n = 0;

    t[n++] = (tiny_tensor){ "token_embd.weight", TINY_VOCAB, TINY_WIDTH };
    t[n++] = (tiny_tensor){ "output_norm.weight", 0, TINY_WIDTH };
    t[n++] = (tiny_tensor){ "output.weight", TINY_VOCAB, TINY_WIDTH };
    for (int i = 0; i < TINY_LAYERS; i++) {
        const tiny_tensor of_layer[9] = {
            { "attn_norm", 0, TINY_WIDTH }, { "attn_q", TINY_WIDTH, TINY_WIDTH }, { "attn_k", TINY_KV, TINY_WIDTH },
            { "attn_v", TINY_KV, TINY_WIDTH }, { "attn_output", TINY_WIDTH, TINY_WIDTH }, { "ffn_norm", 0, TINY_WIDTH },
            { "ffn_gate", TINY_FF, TINY_WIDTH }, { "ffn_up", TINY_FF, TINY_WIDTH }, { "ffn_down", TINY_WIDTH, TINY_FF } };
        for (int j = 0; j < 9; j++, n++) {
            t[n] = of_layer[j];
            snprintf(t[n].name, sizeof t[n].name, "blk.%d.%.24s.weight", i, of_layer[j].name);
        }
    }
    image_head(&g, 3, (uint64_t)n, 9);
    image_str(&g, "general.architecture", "llama");
    image_u32(&g, "llama.block_count", TINY_LAYERS);
    image_u32(&g, "llama.context_length", TINY_LIMIT);
    image_u32(&g, "llama.embedding_length", TINY_WIDTH);
    image_u32(&g, "llama.feed_forward_length", TINY_FF);
    image_u32(&g, "llama.attention.head_count", 4);
    image_u32(&g, "llama.attention.head_count_kv", 2);
    image_u32(&g, "llama.vocab_size", TINY_VOCAB);
    image_u32(&g, "llama.attention.sliding_window", window);
    for (int i = 0; i < n; i++) {
        const uint64_t dims[2] = { t[i].k, t[i].rows };
        image_tensor(&g, t[i].name, t[i].rows ? 2 : 1, dims, t[i].rows ? 8 : 0, offset);
        offset = (offset + tiny_bytes(&t[i]) + 31) / 32 * 32;
    }
    image_pad(&g, 32);
    for (int i = 0; i < n; i++) {
        tiny_data(&g, &t[i]);
        image_pad(&g, 32);
    }
    strcpy(path, "/tmp/plp-tiny-XXXXXX");
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, g.bytes, g.n) != (ssize_t)g.n) { perror("tiny model"); exit(2); }
    close(fd);
    free(g.bytes);
}

static inline void tiny_write(char *path) { tiny_write_windowed(path, 0); }

#endif
