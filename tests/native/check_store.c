/* tests/native/check_store.c - KV files: what was saved comes back, and nothing else is accepted */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/mem.h"
#include "base/platform.h"
#include "kv/pool.h"
#include "kv/store.h"

/* computed by a second implementation, from the words in store.h */
#define SUM_0   UINT64_C(0x30c8ef3131b33eca)
#define SUM_7   UINT64_C(0x316a0011b18cb3e4)
#define SUM_200 UINT64_C(0x0dc77155b83ea391)

static char folder[512];

static const char *in_folder(const char *name)
{
    static char path[2][640];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* ---- content that follows from (seed, run, block) ---- */

typedef struct content { plp_store_info info; int32_t tokens[400]; uint64_t seed; uint8_t block[1 << 20]; int64_t fail_at; } content;

static const void *block_of(void *context, uint32_t run, uint32_t i)
{
    content *c = context;
    uint64_t x = c->seed * 1000003 + run * 1009 + i + 1;
    if (c->fail_at >= 0 && c->fail_at-- == 0)
        return NULL;
    for (size_t k = 0; k < c->info.runs[run].block_bytes / 8; k++) {
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        memcpy(c->block + 8 * k, &x, 8);
    }
    return c->block;
}

static content *make(uint64_t seed, uint32_t kind)
{
    content *c = calloc(1, sizeof *c);
    c->seed = seed;
    c->fail_at = -1;
    c->info = (plp_store_info){ .kind = kind, .shape = { .block_len = 16, .n_layers = 30, .n_kv_heads = 3, .head_dim = 64, .kv_format = 2 },
                                .n_tokens = 37, .tokens = c->tokens, .n_runs = 2 };
    c->info.runs[0] = (plp_store_run){ 192, 2, 0, 7 };
    c->info.runs[1] = (plp_store_run){ 64, 1, 2, 9 };
    for (int i = 0; i < 32; i++)
        c->info.shape.fingerprint[i] = (uint8_t)(i * 7 + 1);
    for (int i = 0; i < 400; i++)
        c->tokens[i] = (int32_t)(seed + i * 31);
    if (kind == PLP_STORE_SESSION) {
        c->info.ref_path = "prefixes/\xc3\xa4 b.kv";
        c->info.ref_id = 0x1234567890abcdefu;
        c->info.ref_tokens = 16;
        c->info.note = "a note, 17 bytes";
        c->info.note_bytes = 17;
    }
    return c;
}

static plp_status save(const char *path, content *c, plp_error *err) { return plp_store_save(path, &c->info, block_of, c, err); }

static bool same(const plp_store *s, content *c)
{
    const plp_store_info *a = plp_store_get(s), *b = &c->info;
    bool equal = a->kind == b->kind && !memcmp(&a->shape, &b->shape, sizeof a->shape) && a->n_tokens == b->n_tokens &&
                 !memcmp(a->tokens, b->tokens, b->n_tokens * sizeof(int32_t)) && a->n_runs == b->n_runs &&
                 a->ref_id == b->ref_id && a->ref_tokens == b->ref_tokens &&
                 a->note_bytes == b->note_bytes && (!a->note_bytes || !memcmp(a->note, b->note, b->note_bytes)) &&
                 !a->ref_path == !b->ref_path && (!a->ref_path || !strcmp(a->ref_path, b->ref_path));
    for (uint32_t r = 0; equal && r < b->n_runs; r++) {
        const plp_store_run *x = &a->runs[r], *y = &b->runs[r];
        equal = x->block_bytes == y->block_bytes && x->n_blocks == y->n_blocks && x->first == y->first && x->tag == y->tag;
        for (uint32_t i = 0; equal && i < y->n_blocks; i++)
            equal = (uintptr_t)plp_store_block(s, r, i) % 64 == 0 &&
                    !memcmp(plp_store_block(s, r, i), block_of(c, r, i), (size_t)y->block_bytes);
    }
    return equal;
}

/* The status of opening; closes again. */
static plp_status try_open(const char *path, const content *c, plp_error *err)
{
    plp_store *s = NULL;
    const plp_status status = plp_store_open(&s, path, c->info.kind, &c->info.shape, err);
    CHECK((status == PLP_OK) == (s != NULL), "a result with status %d", status);
    plp_store_drop(s);
    return status;
}

static uint8_t *read_all(const char *path, size_t *n)
{
    struct stat st;
    const int fd = open(path, O_RDONLY);
    uint8_t *data;
    if (fd < 0 || fstat(fd, &st) || !(data = malloc((size_t)st.st_size + 1)) || read(fd, data, (size_t)st.st_size) != st.st_size)
        exit(2);
    close(fd);
    *n = (size_t)st.st_size;
    return data;
}

static void write_all(const char *path, const uint8_t *data, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        exit(2);
    close(fd);
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static uint64_t id_of_saved(content *c)
{
    plp_store *s = NULL;
    plp_error err;
    CHECK(save(in_folder("id.kv"), c, &err) == PLP_OK && plp_store_open(&s, in_folder("id.kv"), 0, NULL, &err) == PLP_OK, "%s", err.msg);
    const uint64_t id = s ? plp_store_id(s) : 0;
    plp_store_drop(s);
    unlink(in_folder("id.kv"));
    return id;
}

/* ---- cases ---- */

/* A prefix that was built anew under another name is still the one that sessions were saved with. */
static void ids(void)
{
    content *c = make(3, PLP_STORE_SESSION);
    const uint64_t id = id_of_saved(c);
    CHECK(id && id_of_saved(c) == id, "the same content has two ids");
    c->info.note_bytes = 5;
    CHECK(id_of_saved(c) == id, "the note changes the id");
    c->tokens[36]++;
    CHECK(id_of_saved(c) != id, "another token, the same id");
    c->tokens[36]--;
    c->seed++;
    CHECK(id_of_saved(c) != id, "other blocks, the same id");
    free(c);
}

static void round_trip(void)
{
    plp_error err;
    for (uint32_t kind = PLP_STORE_PREFIX; kind <= PLP_STORE_SESSION; kind++)
        for (uint32_t n_tokens = 0; n_tokens <= 400; n_tokens += n_tokens ? 133 : 1) {
            content *c = make(n_tokens + kind, kind);
            plp_store *s = NULL;
            c->info.n_tokens = n_tokens;
            c->info.ref_tokens = n_tokens < c->info.ref_tokens ? n_tokens : c->info.ref_tokens;
            c->info.runs[0].n_blocks = n_tokens / 16;
            c->info.runs[1].n_blocks = n_tokens % 16 != 0;
            c->info.runs[1].first = n_tokens / 16;
            CHECK(save(in_folder("a.kv"), c, &err) == PLP_OK, "%s", err.msg);
            CHECK(plp_store_open(&s, in_folder("a.kv"), kind, &c->info.shape, &err) == PLP_OK, "%s", err.msg);
            if (s) {
                CHECK(same(s, c), "kind %u, %u tokens: another content came back", kind, n_tokens);
                plp_store_keep(s);
                plp_store_drop(s);
                CHECK(same(s, c), "dropped with a reference left");
            }
            plp_store_drop(s);
            free(c);
        }
    CHECK(plp_mem_bytes(PLP_MEM_KV) == 0 && plp_mem_bytes(PLP_MEM_OTHER) == 0, "heap bytes leaked");
}

static void every_byte_matters(void)
{
    content *c = make(5, PLP_STORE_SESSION);
    plp_error err;
    size_t n;
    CHECK(save(in_folder("a.kv"), c, &err) == PLP_OK, "%s", err.msg);
    uint8_t *data = read_all(in_folder("a.kv"), &n);
    const int fd = open(in_folder("a.kv"), O_WRONLY);
    long n_accepted = 0, n_other = 0;
    for (size_t i = 0; i < n; i++) {
        const uint8_t flipped = data[i] ^ (uint8_t)(1u << check_random() % 8);
        CHECK(pwrite(fd, &flipped, 1, (off_t)i) == 1, "pwrite");
        const plp_status status = try_open(in_folder("a.kv"), c, &err);
        n_accepted += status == PLP_OK;
        n_other += status != PLP_E_FILE;
        CHECK(pwrite(fd, data + i, 1, (off_t)i) == 1, "pwrite");
    }
    close(fd);
    CHECK(n_accepted == 0 && n_other == 0, "%ld of %zu flipped bytes accepted, %ld other statuses", n_accepted, n, n_other);
    CHECK(try_open(in_folder("a.kv"), c, &err) == PLP_OK, "restored: %s", err.msg);

    for (size_t length = n; length-- > 0;) {
        if (truncate(in_folder("a.kv"), (off_t)length))
            exit(2);
        const plp_status status = try_open(in_folder("a.kv"), c, &err);
        n_accepted += status == PLP_OK;
        n_other += status != PLP_E_FILE;
    }
    CHECK(n_accepted == 0 && n_other == 0, "%ld of %zu lengths accepted, %ld other statuses", n_accepted, n, n_other);
    data[n] = 0;
    write_all(in_folder("a.kv"), data, n + 1);
    CHECK(try_open(in_folder("a.kv"), c, &err) == PLP_E_FILE && strstr(err.msg, "extended"), "%s", err.msg);
    free(data);
    free(c);
}

static void wrong_files(void)
{
    content *c = make(6, PLP_STORE_PREFIX), *want = make(6, PLP_STORE_PREFIX);
    plp_error err;
    size_t n;
    const char *path = in_folder("a.kv");
    CHECK(save(path, c, &err) == PLP_OK, "%s", err.msg);

    want->info.shape.fingerprint[31] ^= 1;
    CHECK(try_open(path, want, &err) == PLP_E_FILE && strstr(err.msg, "another model"), "%s", err.msg);
    *want = *c; want->info.shape.block_len = 32;
    CHECK(try_open(path, want, &err) == PLP_E_FILE && strstr(err.msg, "blocks of 16 tokens"), "%s", err.msg);
    *want = *c; want->info.shape.kv_format = 0;
    CHECK(try_open(path, want, &err) == PLP_E_FILE && strstr(err.msg, "KV format"), "%s", err.msg);
    *want = *c; want->info.shape.n_layers = 31;
    CHECK(try_open(path, want, &err) == PLP_E_FILE && strstr(err.msg, "another shape"), "%s", err.msg);
    *want = *c; want->info.kind = PLP_STORE_SESSION;
    CHECK(try_open(path, want, &err) == PLP_E_FILE && strstr(err.msg, "is a prefix file where a session file"), "%s", err.msg);

    uint8_t *data = read_all(path, &n);
    data[12] = 2;                               /* version; before the checksum, so that newer files are told apart from damage */
    write_all(path, data, n);
    CHECK(try_open(path, c, &err) == PLP_E_FILE && strstr(err.msg, "version 2"), "%s", err.msg);
    data[12] = 1;
    data[8] ^= data[11]; data[11] ^= data[8]; data[8] ^= data[11];
    write_all(path, data, n);
    CHECK(try_open(path, c, &err) == PLP_E_FILE && strstr(err.msg, "byte order"), "%s", err.msg);
    memcpy(data, "GGUF", 4);
    write_all(path, data, n);
    CHECK(try_open(path, c, &err) == PLP_E_FILE && strstr(err.msg, "not a KV file"), "%s", err.msg);
    CHECK(try_open(in_folder("none.kv"), c, &err) == PLP_E_IO, "%s", err.msg);
    CHECK(try_open(folder, c, &err) == PLP_E_FILE, "%s", err.msg);
    free(data);
    free(c);
    free(want);
}

/* Headers of a forger who knows the checksum: whatever the numbers, no read leaves the file. */
static void hostile_headers(void)
{
    content *c = make(7, PLP_STORE_SESSION);
    plp_error err;
    size_t n;
    long n_accepted = 0;
    CHECK(save(in_folder("a.kv"), c, &err) == PLP_OK, "%s", err.msg);
    uint8_t *good = read_all(in_folder("a.kv"), &n), data[640];
    const int fd = open(in_folder("a.kv"), O_WRONLY);
    static const uint32_t odd[] = { 0, 1, 2, 63, 64, 4095, 4096, 0x7fffffff, 0x80000000, 0xffffffff, 0xffffffc0 };
    for (int round = 0; round < 4000; round++) {
        memcpy(data, good, sizeof data);
        for (uint32_t k = 1 + check_random() % 3; k; k--) {
            const uint32_t at = 16 + check_random() % ((round % 2 ? 512 : 160) / 4) * 4;    /* counts, shape, runs */
            const uint32_t v = check_random() % 4 ? odd[check_random() % 11] : data[at] + check_random() % 5 - 2;
            memcpy(data + at, &v, 4);
        }
        const uint64_t sum = plp_checksum(data, 632);
        memcpy(data + 632, &sum, 8);
        CHECK(pwrite(fd, data, sizeof data, 0) == sizeof data, "pwrite");
        plp_store *s = NULL;
        plp_store_shape shape;
        memcpy(&shape, data + 32, sizeof shape);
        uint32_t kind;
        memcpy(&kind, data + 16, 4);
        const plp_status status = plp_store_open(&s, in_folder("a.kv"), kind, &shape, &err);
        CHECK(status == PLP_OK || status == PLP_E_FILE, "status %d", status);
        if (s) {                                /* harmless numbers changed (a tag, an id): all must be readable */
            const plp_store_info *info = plp_store_get(s);
            uint64_t sum_of_all = plp_checksum(info->tokens, info->n_tokens * sizeof(int32_t));
            for (uint32_t r = 0; r < info->n_runs; r++)
                for (uint32_t i = 0; i < info->runs[r].n_blocks; i++)
                    sum_of_all ^= plp_checksum(plp_store_block(s, r, i), (size_t)info->runs[r].block_bytes);
            n_accepted += sum_of_all != 0;
            plp_store_drop(s);
        }
    }
    CHECK(n_accepted > 50 && n_accepted < 3900, "%ld of 4000 altered headers accepted", n_accepted);
    close(fd);
    free(good);
    free(c);
}

static void bad_saves(void)
{
    content *c = make(8, PLP_STORE_PREFIX), *old = make(9, PLP_STORE_PREFIX);
    plp_error err;
    const char *path = in_folder("kept.kv");
    CHECK(save(path, old, &err) == PLP_OK, "%s", err.msg);
    const int n = n_files();

    c->info.runs[0].block_bytes = 100;
    CHECK(save(path, c, &err) == PLP_E_ARG, "%s", err.msg);
    c->info.runs[0].block_bytes = 192;
    c->info.runs[1].n_blocks = 2;
    CHECK(save(path, c, &err) == PLP_E_ARG, "more blocks than tokens");
    c->info.runs[1].n_blocks = 1;
    c->info.n_runs = PLP_STORE_MAX_RUNS + 1;
    CHECK(save(path, c, &err) == PLP_E_ARG, "too many runs");
    c->info.n_runs = 2;
    c->info.ref_path = "other.kv";
    CHECK(save(path, c, &err) == PLP_E_ARG, "a prefix with a reference");
    c->info.ref_path = NULL;
    for (c->info.kind = 0; c->info.kind < 4; c->info.kind += 3)
        CHECK(save(path, c, &err) == PLP_E_ARG, "kind %u", c->info.kind);
    c->info.kind = PLP_STORE_PREFIX;
    for (int64_t at = 0; at < 6; at++) {        /* three blocks, each asked for twice */
        c->fail_at = at;
        CHECK(save(path, c, &err) == PLP_E_IO, "block %d cannot be read", (int)at);
    }
    c->fail_at = -1;
    CHECK(save(in_folder("no/such/folder.kv"), c, &err) == PLP_E_IO, "%s", err.msg);
    for (int64_t k = 0;; k++) {                 /* every allocation in turn */
        plp_mem_fail_after(k);
        const plp_status status = save(path, c, &err);
        plp_mem_fail_after(-1);
        if (status == PLP_OK)
            break;
        CHECK(status == PLP_E_NOMEM && k < 50, "status %d", status);
        CHECK(try_open(path, old, &err) == PLP_OK, "the old file is gone: %s", err.msg);
    }
    CHECK(n_files() == n, "%d files became %d", n, n_files());
    plp_store *s = NULL;
    CHECK(plp_store_open(&s, path, PLP_STORE_PREFIX, &c->info.shape, &err) == PLP_OK && same(s, c), "%s", err.msg);
    plp_store_drop(s);
    plp_mem_fail_after(0);
    CHECK(try_open(path, c, &err) == PLP_E_NOMEM, "no memory to open");
    plp_mem_fail_after(-1);
    CHECK(plp_mem_bytes(PLP_MEM_KV) == 0 && plp_mem_bytes(PLP_MEM_OTHER) == 0, "heap bytes leaked");
    free(c);
    free(old);
}

/* A process that saves again and again is killed at some moment: the file is a whole one, always. */
static void killed_while_saving(void)
{
    content *c[2] = { make(10, PLP_STORE_PREFIX), make(11, PLP_STORE_PREFIX) };
    plp_error err;
    char path[600];
    int seen[2] = { 0, 0 };
    snprintf(path, sizeof path, "%s", in_folder("killed.kv"));
    for (int i = 0; i < 2; i++) {
        c[i]->info.runs[0] = (plp_store_run){ 1 << 18, 2, 0, 0 };
        c[i]->info.runs[1].n_blocks = 0;
    }
    CHECK(save(path, c[0], &err) == PLP_OK, "%s", err.msg);
    for (int round = 0; round < 30; round++) {
        const pid_t pid = fork();
        if (pid == 0)
            for (int i = 0;; i++)
                if (save(path, c[(i + 1) % 2], NULL))
                    _exit(1);
        usleep(500 + check_random() % 12000);
        int status = 0;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        CHECK(WIFSIGNALED(status), "the writer ended by itself: %d", status);
        plp_store *s = NULL;
        CHECK(plp_store_open(&s, path, PLP_STORE_PREFIX, &c[0]->info.shape, &err) == PLP_OK, "round %d: %s", round, err.msg);
        if (s) {
            const bool first = same(s, c[0]), second = same(s, c[1]);
            CHECK(first || second, "round %d: neither the old nor the new content", round);
            seen[0] += first;
            seen[1] += second;
        }
        plp_store_drop(s);
    }
    printf("  killed 30 times: %d times one content, %d times the other\n", seen[0], seen[1]);
    free(c[0]);
    free(c[1]);
}

/* Blocks of a mapped file live in the pool in place, and the mapping ends with the last of them. */
static void adopted_by_a_pool(void)
{
    content *c = make(12, PLP_STORE_PREFIX);
    const plp_pool_spec spec = { .n_classes = 1, .block_bytes = { 192 }, .budget_bytes = 0 };   /* no room for a copy */
    plp_error err;
    plp_pool *p;
    plp_store *s;
    plp_block b[2];
    plp_pool_stats t;
    CHECK(save(in_folder("a.kv"), c, &err) == PLP_OK && plp_store_open(&s, in_folder("a.kv"), PLP_STORE_PREFIX, &c->info.shape, &err) == PLP_OK &&
          plp_pool_open(&p, &spec, &err) == PLP_OK, "%s", err.msg);
    for (uint32_t i = 0; i < 2; i++) {
        plp_store_keep(s);
        CHECK(plp_pool_adopt(p, 0, plp_store_block(s, 0, i), plp_store_drop, s, &b[i], &err) == PLP_OK, "%s", err.msg);
    }
    plp_store_drop(s);
    unlink(in_folder("a.kv"));                  /* a mapped file may be replaced or removed */
    plp_pool_get_stats(p, &t);
    CHECK(t.n_mapped == 2 && t.mapped_bytes == 384 && t.resident_bytes == 0, "mapped blocks cost the pool nothing");
    for (uint32_t i = 0; i < 2; i++)
        CHECK(!memcmp(plp_pool_data(p, b[i]), block_of(c, 0, i), 192), "block %u", i);
    plp_pool_drop(p, b[0]);
    CHECK(!memcmp(plp_pool_data(p, b[1]), block_of(c, 0, 1), 192), "unmapped too early");
    plp_pool_drop(p, b[1]);
    plp_pool_close(p);
    CHECK(plp_mem_bytes(PLP_MEM_KV) == 0, "the store outlived its blocks");
    free(c);
}

static void checksum(void)
{
    uint8_t data[200];
    for (int i = 0; i < 200; i++)
        data[i] = (uint8_t)i;
    /* Fixed values: a file must be readable by every later version and on every machine. */
    CHECK(plp_checksum(data, 0) == SUM_0 && plp_checksum(data, 7) == SUM_7 && plp_checksum(data, 200) == SUM_200,
          "0x%016llx 0x%016llx 0x%016llx", (unsigned long long)plp_checksum(data, 0), (unsigned long long)plp_checksum(data, 7),
          (unsigned long long)plp_checksum(data, 200));
    for (int i = 0; i < 200; i++)
        for (int bit = 0; bit < 8; bit++) {
            const uint64_t before = plp_checksum(data, 200);
            data[i] ^= (uint8_t)(1u << bit);
            CHECK(plp_checksum(data, 200) != before, "bit %d of byte %d", bit, i);
            data[i] ^= (uint8_t)(1u << bit);
        }
    static uint8_t big[1 << 20];
    uint64_t sum = 0;
    double best = 0;
    for (int run = 0; run < 20; run++) {
        const uint64_t begin = plp_now_ns();
        sum ^= plp_checksum(big, sizeof big);
        const double rate = (double)sizeof big / (double)(plp_now_ns() - begin);
        best = rate > best ? rate : best;
    }
    printf("  checksum: %.1f GB/s\n", best);
    CHECK(sum == 0, "an even number of equal sums");
}

int main(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/plp-check-store-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder))
        CHECK_SKIP("no folder for scratch files");
    RUN(checksum);
    RUN(round_trip);
    RUN(every_byte_matters);
    RUN(wrong_files);
    RUN(ids);
    RUN(hostile_headers);
    RUN(bad_saves);
    RUN(killed_while_saving);
    RUN(adopted_by_a_pool);

    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlink(in_folder(e->d_name));
    closedir(d);
    rmdir(folder);
    return check_done();
}
