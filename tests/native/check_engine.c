/*
 * check_engine.c - the engine on a tiny model: the same bits whatever the way, no allocation in the token
 * loop, every allocation failure survived, forged files refused, threads that share an engine
 *
 *   check_engine threads     only what a thread sanitizer is interested in
 */
#include "base/mem.h"
#include "kernels/kernels.h"
#include "kv/store.h"
#include "plp.h"
#include "tiny_model.h"

#include <pthread.h>

static char path[64];
static int32_t text[TINY_LIMIT];

static plp_engine *open_engine(const plp_engine_options *o)
{
    plp_error err = { 0 };
    plp_engine *e = NULL;
    const plp_status s = plp_engine_open(&e, path, o, &err);
    CHECK(s == PLP_OK, "%s", err.msg);
    if (s != PLP_OK) exit(1);
    return e;
}

static plp_status compute(plp_session *s)
{
    uint32_t pending = 1;
    plp_status status = PLP_OK;
    while (pending && status == PLP_OK) status = plp_session_step(s, &pending, NULL);
    return status;
}

/* The logits after text[0..n), fed `chunk` at a time into a session of its own. */
static void cold(plp_engine *e, uint32_t n, uint32_t chunk, float *out)
{
    plp_session *s;
    CHECK(plp_session_open(&s, e, NULL) == PLP_OK, "open");
    for (uint32_t i = 0; i < n; i += chunk) {
        CHECK(plp_session_feed(s, text + i, n - i < chunk ? n - i : chunk, NULL) == PLP_OK, "feed");
        CHECK(compute(s) == PLP_OK, "compute");
    }
    memcpy(out, plp_session_logits(s), TINY_VOCAB * sizeof *out);
    plp_session_close(s);
}

static bool same(const float *a, const float *b) { return a && b && !memcmp(a, b, TINY_VOCAB * sizeof *a); }

/* ---- one timeline, many ways ---- */

static void ways(int32_t kv_format, uint32_t flags, uint32_t n_threads, uint32_t block_len, const float *want, uint32_t n)
{
    static const uint32_t chunks[] = { 1, 7, 16, 64, 512 };
    plp_engine_options o;
    float got[TINY_VOCAB];

    plp_engine_defaults(&o);
    o.kv_format = kv_format, o.flags = flags, o.n_threads = n_threads, o.block_len = block_len;
    plp_engine *e = open_engine(&o);
    for (int i = 0; i < 5; i++) {
        cold(e, n, chunks[i], got);
        CHECK(same(got, want), "format %d flags %u threads %u chunk %u", kv_format, flags, n_threads, chunks[i]);
    }
    plp_session *a, *b, *c;
    plp_sync r;
    CHECK(plp_session_open(&a, e, NULL) == PLP_OK && plp_session_open(&b, e, NULL) == PLP_OK, "open");
    plp_session_sync(a, text, n, &r, NULL);
    compute(a);
    plp_session_sync(b, text, n, &r, NULL);
    CHECK(flags & PLP_ENGINE_NO_REUSE ? r.n_reused == 0 : r.n_reused >= (n - 1) / o.block_len * o.block_len, "reused %u of %u", r.n_reused, n);
    compute(b);
    CHECK(same(plp_session_logits(b), want), "after reuse");
    CHECK(plp_session_fork(&c, b, NULL) == PLP_OK && same(plp_session_logits(c), want), "fork");
    plp_session_rewind(c, n / 2, NULL);
    plp_session_feed(c, (int32_t[]){ 3, 1, 2 }, 3, NULL);
    compute(c);
    CHECK(!same(plp_session_logits(c), want), "another timeline has other logits");
    plp_session_sync(c, text, n, &r, NULL);
    compute(c);
    CHECK(same(plp_session_logits(c), want) && same(plp_session_logits(b), want), "back again, and the twin untouched");
    CHECK(plp_engine_check(e), "ledger");
    plp_session_close(a);
    plp_session_close(b);
    plp_session_close(c);
    plp_memory m;
    plp_engine_memory(e, &m);
    CHECK(m.resident == 0 && m.n_blocks == 0, "all closed: %llu bytes left", (unsigned long long)m.resident);
    plp_engine_close(e);
}

static void same_bits_whatever_the_way(void)
{
    float want[3][TINY_VOCAB];
    for (int f = 0; f < 3; f++) {
        plp_engine_options o;
        plp_engine_defaults(&o);
        o.kv_format = f, o.n_threads = 1, o.flags = PLP_ENGINE_NO_REUSE;
        plp_engine *e = open_engine(&o);
        cold(e, 300, 512, want[f]);
        plp_engine_close(e);
        for (uint32_t threads = 1; threads <= 3; threads++) ways(f, 0, threads, 16, want[f], 300);
        ways(f, PLP_ENGINE_SHUFFLE, 2, 16, want[f], 300);
        ways(f, PLP_ENGINE_NO_REUSE, 2, 16, want[f], 300);
        ways(f, PLP_ENGINE_ONE_HASH, 2, 16, want[f], 300);
    }
    CHECK(!same(want[0], want[1]) && !same(want[1], want[2]), "formats differ, or the test sees nothing");
    ways(PLP_KV_F16, PLP_ENGINE_SHUFFLE, 2, 64, want[0], 300);
    CHECK(plp_mem_violations() == 0, "%llu allocations in the token loop", (unsigned long long)plp_mem_violations());
}

/* ---- allocation failures ---- */

/* Open, use and close with the n-th allocation failing; true once nothing failed any more. */
static bool survives(int64_t n)
{
    plp_engine *e = NULL;
    plp_session *s = NULL, *f = NULL;
    plp_error err = { 0 };
    plp_sync r;
    uint64_t pin;
    bool ok;

    plp_mem_fail_after(n);
    ok = plp_engine_open(&e, path, NULL, &err) == PLP_OK;
    CHECK(ok || (err.status < 0 && err.msg[0]), "a failure without a word");
    ok = ok && plp_session_open(&s, e, &err) == PLP_OK && plp_session_sync(s, text, 40, &r, &err) == PLP_OK && compute(s) == PLP_OK &&
         plp_session_fork(&f, s, &err) == PLP_OK && plp_session_feed(f, text, 1, &err) == PLP_OK && compute(f) == PLP_OK &&
         plp_session_pin(s, 33, &pin, &err) == PLP_OK;
    CHECK(!e || plp_engine_check(e), "ledger after a failure at %lld", (long long)n);
    plp_session_close(f);
    plp_session_close(s);
    plp_engine_close(e);
    plp_mem_fail_after(-1);
    return ok;
}

static void every_allocation_may_fail(void)
{
    uint64_t before[PLP_N_TAGS];
    int64_t n = 0;
    for (int t = 0; t < PLP_N_TAGS; t++) before[t] = plp_mem_bytes(t);
    while (!survives(n) && n < 2000) n++;
    CHECK(n > 50 && n < 2000, "%lld allocations were made to fail", (long long)n);
    for (int t = 0; t < PLP_N_TAGS; t++)
        CHECK(plp_mem_bytes(t) == before[t], "tag %d: %llu bytes leaked", t, (unsigned long long)(plp_mem_bytes(t) - before[t]));
    printf("%lld allocations failed in turn\n", (long long)n);
}

/* ---- weights that are not finite ---- */

/* An error and not a token, by every tier; on the way no integer overflows that a sanitizer would see. */
static void infinite_weights_are_said(void)
{
    char finite[64];
    memcpy(finite, path, sizeof finite);
    for (int i = 0; i < 2; i++) {
        tiny_scale = i ? 0x7e00 : 0x7c00;   /* NaN, infinity */
        tiny_write(path);
        tiny_scale = 0x1800;
        for (uint32_t k = 0; k < plp_kernels_count(); k++)
            for (int32_t format = PLP_KV_F16; format <= PLP_KV_Q4; format++) {
                plp_engine_options o;
                plp_sampling greedy;
                plp_session *s;
                int32_t token;
                setenv("PLP_CPU", plp_kernels_at(k)->tier, 1);
                plp_engine_defaults(&o);
                plp_sampling_defaults(&greedy);
                o.kv_format = format;
                o.n_threads = 1;
                plp_engine *e = open_engine(&o);
                CHECK(plp_session_open(&s, e, NULL) == PLP_OK && plp_session_feed(s, text, 40, NULL) == PLP_OK && compute(s) == PLP_OK, "computed");
                CHECK(plp_session_sample(s, &greedy, &token, NULL, NULL) == PLP_E_NUMERIC, "%s format %d", plp_kernels_at(k)->tier, format);
                plp_session_close(s);
                plp_engine_close(e);
            }
        unlink(path);
    }
    unsetenv("PLP_CPU");
    memcpy(path, finite, sizeof path);
}

/* ---- forged files ---- */

typedef struct forgery { plp_store *from; uint32_t first; } forgery;       /* first: of run 0's blocks */

static const void *forged_block(void *context, uint32_t run, uint32_t i)
{
    const forgery *f = context;
    return plp_store_block(f->from, run, run == 0 ? f->first + i : i);
}

/* A sound file of those blocks of run 0 alone, each of so many bytes; referring to `refer`, if it refers. */
static void forge(const char *to, const char *from, uint64_t n_bytes, uint32_t first, uint32_t n_blocks, const char *refer)
{
    plp_error err = { 0 };
    plp_store *s, *other = NULL;
    CHECK(plp_store_open(&s, from, 0, NULL, &err) == PLP_OK, "%s", err.msg);
    plp_store_info info = *plp_store_get(s);
    if (info.n_runs && n_bytes) {
        info.runs[0].block_bytes = n_bytes;
        info.runs[0].first += first;
        info.runs[0].n_blocks = n_blocks;
    }
    if (refer) {
        CHECK(plp_store_open(&other, refer, 0, NULL, &err) == PLP_OK, "%s", err.msg);
        info.ref_path = refer;
        info.ref_id = plp_store_id(other);
    }
    CHECK(plp_store_save(to, &info, forged_block, &(forgery){ s, first }, &err) == PLP_OK, "%s", err.msg);
    plp_store_drop(other);
    plp_store_drop(s);
}

/* Not only refused: what a wrong file leads to would be found in the step after it. */
static void refused(plp_engine *e, const char *file, const char *why)
{
    plp_error err = { 0 };
    plp_session *s = NULL;
    plp_status status = plp_session_resume(&s, e, file, &err);
    CHECK(status == PLP_E_FILE && strstr(err.msg, why), "%d: %s", status, err.msg);
    if (status == PLP_OK && plp_session_feed(s, text, 1, NULL) == PLP_OK) compute(s);
    plp_session_close(s);
    CHECK(plp_engine_check(e), "ledger");
}

/* Checksums stop no forger: sizes and places of blocks are what the engine itself looks at. */
static void forged_files_are_refused(void)
{
    enum { N = 200 };
    char windowed[64], folder[] = "/tmp/plp-forge-XXXXXX", file[6][96];
    plp_session *s;
    uint64_t pin;
    uint32_t n;

    CHECK(mkdtemp(folder), "no folder");
    for (int i = 0; i < 6; i++) snprintf(file[i], sizeof file[i], "%s/%d", folder, i);
    plp_engine *e = open_engine(NULL);
    CHECK(plp_session_open(&s, e, NULL) == PLP_OK && plp_session_feed(s, text, N, NULL) == PLP_OK && compute(s) == PLP_OK, "session");
    CHECK(plp_prefix_save(s, 192, file[0], NULL) == PLP_OK && plp_session_save(s, file[1], file[0], NULL) == PLP_OK, "save");
    plp_session_close(s);
    forge(file[2], file[0], 64, 0, 12, NULL);           /* blocks that are too small */
    forge(file[3], file[1], 0, 0, 0, file[2]);
    refused(e, file[3], "block 0 follows");
    CHECK(plp_prefix_load(e, file[2], &pin, &n, NULL) == PLP_E_FILE, "loaded");
    plp_store *whole;
    CHECK(plp_store_open(&whole, file[0], 0, NULL, NULL) == PLP_OK, "open");
    const uint64_t block_bytes = plp_store_get(whole)->runs[0].block_bytes;
    plp_store_drop(whole);
    forge(file[4], file[0], block_bytes, 5, 7, NULL);       /* no block before the sixth, where all layers see everything */
    forge(file[5], file[1], 0, 0, 0, file[4]);
    refused(e, file[5], "looks back to");
    CHECK(plp_prefix_load(e, file[4], &pin, &n, NULL) == PLP_E_FILE, "loaded");
    CHECK(plp_session_resume(&s, e, file[1], NULL) == PLP_OK, "the true one");
    plp_session_close(s);
    plp_engine_close(e);

    char all[64];
    memcpy(all, path, sizeof all);
    tiny_write_windowed(windowed, 32);
    memcpy(path, windowed, sizeof path);
    e = open_engine(NULL);
    CHECK(plp_session_open(&s, e, NULL) == PLP_OK && plp_session_feed(s, text, N, NULL) == PLP_OK && compute(s) == PLP_OK, "session");
    CHECK(plp_session_save(s, file[0], NULL, NULL) == PLP_OK, "save");
    plp_session_close(s);
    forge(file[1], file[0], block_bytes, 12, 1, NULL);      /* the last block alone: the window holds two more */
    refused(e, file[1], "looks back to");
    forge(file[2], file[0], block_bytes, 10, 3, NULL);      /* position 200 sees 169 and what follows: blocks 10 to 12 */
    CHECK(plp_session_resume(&s, e, file[2], NULL) == PLP_OK && plp_session_feed(s, text, 1, NULL) == PLP_OK && compute(s) == PLP_OK, "a window's worth");
    plp_session_close(s);
    plp_engine_close(e);
    unlink(windowed);
    memcpy(path, all, sizeof path);
    for (int i = 0; i < 6; i++) unlink(file[i]);
    rmdir(folder);
}

/* ---- threads ---- */

enum { THREADS = 4, STEPS = 24 };
static plp_engine *shared;
static float alone[THREADS][TINY_VOCAB];

typedef struct job { int id; bool ok; pthread_t thread; } job;

static void *talk(void *arg)
{
    job *j = arg;
    plp_session *s;
    int32_t token = j->id + 5;
    j->ok = plp_session_open(&s, shared, NULL) == PLP_OK && plp_session_feed(s, text, 20 + (uint32_t)j->id * 30, NULL) == PLP_OK && compute(s) == PLP_OK;
    for (int i = 0; j->ok && i < STEPS; i++, token = (token * 7 + 1) % TINY_VOCAB)
        j->ok = plp_session_feed(s, &token, 1, NULL) == PLP_OK && compute(s) == PLP_OK;
    if (j->ok && j->id < THREADS && alone[j->id][0] != 0) j->ok = same(plp_session_logits(s), alone[j->id]);
    else if (j->ok) memcpy(alone[j->id], plp_session_logits(s), sizeof alone[j->id]);
    plp_session_close(s);
    return NULL;
}

static void threads_share_an_engine(void)
{
    plp_engine_options o;
    job jobs[THREADS];
    plp_engine_defaults(&o);
    o.n_threads = 2;
    shared = open_engine(&o);
    for (int round = 0; round < 4; round++) {           /* the first alone, then all at once */
        for (int i = 0; i < THREADS; i++) {
            jobs[i] = (job){ .id = i };
            if (round == 0) talk(&jobs[i]);
            else pthread_create(&jobs[i].thread, NULL, talk, &jobs[i]);
        }
        for (int i = 0; i < THREADS; i++) {
            if (round) pthread_join(jobs[i].thread, NULL);
            CHECK(jobs[i].ok, "round %d thread %d", round, i);
        }
    }
    CHECK(plp_engine_check(shared), "ledger");
    plp_engine_close(shared);
}

static plp_session *contested;
static _Atomic int busy_seen, wrong_seen;

static void *contend(void *arg)
{
    for (int i = 0; i < 200; i++) {
        uint32_t pending;
        const plp_status s = i % 3 ? plp_session_step(contested, &pending, NULL) : plp_session_feed(contested, text, 1, NULL);
        if (s == PLP_E_BUSY) busy_seen++;
        else if (s != PLP_OK && s != PLP_E_CANCELLED && s != PLP_E_CONTEXT) wrong_seen++;
        if (i % 50 == 49) plp_session_cancel(contested);
    }
    return NULL;
}

static void one_session_serves_one_thread(void)
{
    pthread_t t[3];
    shared = open_engine(NULL);
    CHECK(plp_session_open(&contested, shared, NULL) == PLP_OK, "open");
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, contend, NULL);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    CHECK(wrong_seen == 0, "%d calls ended as they must not", wrong_seen);
    CHECK(plp_engine_check(shared), "ledger");
    /* A closed engine: its sessions say so, and closing them later is fine. */
    plp_engine_close(shared);
    CHECK(plp_session_feed(contested, text, 1, NULL) == PLP_E_CLOSED, "closed");
    plp_session_close(contested);
}

int main(int argc, char **argv)
{
    const bool only_threads = argc > 1 && !strcmp(argv[1], "threads");
    for (int i = 0; i < TINY_LIMIT; i++) text[i] = (int32_t)(check_random() % TINY_VOCAB);
    tiny_write(path);
    if (!only_threads) {
        RUN(same_bits_whatever_the_way);
        RUN(every_allocation_may_fail);
        RUN(infinite_weights_are_said);
        RUN(forged_files_are_refused);
    }
    RUN(threads_share_an_engine);
    RUN(one_session_serves_one_thread);
    unlink(path);
    return check_done();
}
