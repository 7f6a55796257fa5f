/*
 * engine/fingerprint.c - what stored blocks depend on, in 32 bytes: the model, its geometry, the KV format, the numerics
 *
 * A file whose fingerprint is another one is not used. It tells models apart; it is no seal against forgery.
 */
#include "engine/engine.h"
#include "format/gguf.h"
#include "kv/store.h"

#include <string.h>

/* Four chained checksums. */
typedef struct digest { uint64_t h[4]; } digest;

static void absorb(digest *g, const void *data, size_t n)
{
    uint64_t piece[6];
    for (int i = 0; i < 4; i++) {
        piece[0] = g->h[i], piece[1] = g->h[(i + 1) % 4], piece[2] = n, piece[3] = (uint64_t)i;
        piece[4] = plp_checksum(data, n), piece[5] = 0;
        g->h[i] = plp_checksum(piece, sizeof piece);
    }
}

/* Of every tensor its place and three samples: reading all weights would cost more than the prefix saves. */
static void absorb_tensor(digest *g, const plp_file *f, uint64_t i)
{
    enum { SAMPLE = 256 };
    plp_tensor_info t;
    const void *data;
    if (plp_file_tensor(f, i, &t, NULL) < 0)
        return;
    absorb(g, t.name, strlen(t.name));
    absorb(g, &t.type, sizeof t.type);
    absorb(g, t.dims, sizeof t.dims);
    if (plp_file_tensor_data(f, i, &data, NULL) < 0)
        return;
    const size_t n = t.n_bytes < SAMPLE ? t.n_bytes : SAMPLE;
    absorb(g, data, n);
    absorb(g, (const char *)data + (t.n_bytes - n) / 2, n);
    absorb(g, (const char *)data + t.n_bytes - n, n);
}

static void absorb_meta(digest *g, const plp_file *f, uint64_t i)
{
    plp_meta m;
    const char *s;
    size_t n;
    double v;
    if (plp_file_meta(f, i, &m, NULL) < 0 || m.type == PLP_META_ARRAY || !strncmp(m.key, "tokenizer.", 10))
        return;                             /* text is turned into ids before KV comes in */
    absorb(g, m.key, strlen(m.key));
    if (plp_file_str(f, i, 0, &s, &n, NULL) == PLP_OK)
        absorb(g, s, n);
    else if (plp_file_f64(f, i, 0, &v, NULL) == PLP_OK)
        absorb(g, &v, sizeof v);
}

void plp_engine_set_fingerprint(plp_engine *e)
{
    digest g = { { 1, 2, 3, 4 } };
    const uint32_t shape[] = { PLP_NUMERICS_VERSION, e->options.block_len, (uint32_t)e->options.kv_format, e->model->n_layers,
                               e->model->n_kv_heads, e->model->head_dim };
    absorb(&g, shape, sizeof shape);
    for (uint64_t i = 0; i < plp_file_n_meta(e->file); i++)
        absorb_meta(&g, e->file, i);
    for (uint64_t i = 0; i < plp_file_n_tensors(e->file); i++)
        absorb_tensor(&g, e->file, i);
    memcpy(e->fingerprint, g.h, sizeof e->fingerprint);
}

void plp_engine_fingerprint(const plp_engine *e, char out[65])
{
    plp_fingerprint_spell((const uint8_t *)e->fingerprint, out);
}
