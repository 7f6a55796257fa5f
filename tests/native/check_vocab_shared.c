/*
 * tests/native/check_vocab_shared.c - published tokenizer cases, real vocabularies, the default model
 *
 * Needs the shared folder (shared.h) and skips without it; what needs no data is in check_vocab.c.
 */
#include <pthread.h>
#include <time.h>

#include "plp.h"
#include "shared.h"

static const char *const names[] = { "gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "starcoder", "llama-spm", "phi-3" };

static plp_vocab *open_file(const char *path)
{
    plp_error err = { 0 };
    plp_file *f = NULL;
    plp_vocab *v = NULL;

    if (plp_file_open(&f, path, PLP_FILE_LENIENT, &err) || plp_vocab_open(&v, f, &err))
        CHECK(0, "%s: %s", path, err.msg);
    plp_file_close(f);
    return v;
}

static plp_vocab *open_shared(const char *name)
{
    char path[1024], file[128];
    snprintf(file, sizeof file, "vocabs/ggml-vocab-%s.gguf", name);
    return open_file(shared_path(path, file));
}

/* Ids of a text; the caller frees. */
static int32_t *tokens_of(const plp_vocab *v, const char *text, size_t n_bytes, uint32_t flags, size_t *n)
{
    plp_error err = { 0 };
    int32_t *ids = malloc((n_bytes + 8) * sizeof *ids);
    *n = 0;
    CHECK(!plp_tokenize(v, text, n_bytes, flags, ids, n_bytes + 8, n, &err), "%s", err.msg);
    return ids;
}

static void check_back(const plp_vocab *v, const char *name, const char *text, size_t n_bytes, const int32_t *ids, size_t n)
{
    plp_error err = { 0 };
    size_t m = 0;
    char *back = malloc(n_bytes + 64);

    CHECK(!plp_detokenize(v, ids, n, 0, back, n_bytes + 64, &m, &err), "%s: %s", name, err.msg);
    CHECK(m == n_bytes && !memcmp(back, text, m), "%s: '%.*s' came back as '%.*s'", name, (int)n_bytes, text, (int)m, back);
    free(back);
}

static void check_ids(const plp_vocab *v, const char *name, const char *text, size_t n_bytes, uint32_t flags,
                      const int32_t *want, size_t n_want)
{
    size_t n;
    int32_t *ids = tokens_of(v, text, n_bytes, flags, &n);

    CHECK(n == n_want, "%s: '%.*s': %zu tokens, want %zu", name, (int)(n_bytes < 99 ? n_bytes : 99), text, n, n_want);
    for (size_t i = 0; i < n && i < n_want; i++)
        CHECK(ids[i] == want[i], "%s: '%.*s': token %zu is %d, want %d", name, (int)(n_bytes < 99 ? n_bytes : 99), text, i, ids[i], want[i]);
    if (!(flags & PLP_TOKENIZE_CONTROL))
        check_back(v, name, text, n_bytes, ids, n);
    free(ids);
}
#define IDS(v, name, text, ...) check_ids(v, name, text, sizeof text - 1, 0, (const int32_t[]){ __VA_ARGS__ }, \
                                          sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

/* Every case of every published file: ids equal, and the bytes come back. */
static void published_cases(void)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";

    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[1024], file[128];
        size_t n_in = 0, n_out = 0, n_cases = 0;
        plp_vocab *v = open_shared(names[k]);
        snprintf(file, sizeof file, "vocabs/ggml-vocab-%s.gguf.inp", names[k]);
        char *in = read_whole(shared_path(path, file), &n_in);
        snprintf(file, sizeof file, "vocabs/ggml-vocab-%s.gguf.out", names[k]);
        char *out = read_whole(shared_path(path, file), &n_out);

        CHECK(v && in && out, "%s", path);
        for (char *text = in, *line = out; v && in && out && text; n_cases++) {
            char *end = strstr(text, separator), *line_end = strchr(line, '\n');
            int32_t want[4096];
            size_t n_want = 0;
            if (line_end)
                *line_end = 0;
            for (char *p = line, *q; n_want < 4096; p = q) {
                const long id = strtol(p, &q, 10);
                if (q == p)
                    break;
                want[n_want++] = (int32_t)id;
            }
            check_ids(v, names[k], text, end ? (size_t)(end - text) : strlen(text), 0, want, n_want);
            text = end ? end + strlen(separator) : NULL;
            line = line_end ? line_end + 1 : line + strlen(line);
        }
        CHECK(n_cases == 47, "%s: %zu cases", names[k], n_cases);
        free(in);
        free(out);
        plp_vocab_close(v);
    }
}

int main(void)
{
    char path[1024];

    if (access(shared_path(path, "vocabs/ggml-vocab-gpt-2.gguf"), R_OK))
        CHECK_SKIP("no vocabularies; set PLP_SHARED or put the shared folder beside the project");
    RUN(published_cases);
    return check_done();
}
