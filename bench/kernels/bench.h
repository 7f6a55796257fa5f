/*
 * bench/kernels/bench.h - what the parts of plp-bench share: options, repeated timing, JSON lines
 *
 * Output   one JSON object a line on stdout; "seconds" lists the time of one call in every repetition, so
 *          that whoever reads it does the statistics. Bytes and operations are those of one call.
 * Cold     what decode reads comes from memory, so a call there walks on through a buffer that is several
 *          times the last cache; everything else is warm.
 */
#ifndef BENCH_H
#define BENCH_H

#include "base/platform.h"
#include "base/threads.h"
#include "kernels/kernels.h"

#define BENCH_MAX_REPS 64u

typedef struct bench {
    plp_team   *team;
    uint32_t    n_threads, n_reps;
    double      seconds;            /* least time of a repetition */
    double      patience;           /* a call that takes longer than this is left out, and said to be */
    const char *tier, *only, *types, *formats, *block_lens;     /* comma-separated; NULL: all */
    size_t      cold_bytes;         /* size of the buffer that cold calls walk through */
    uint32_t    n_rows, k_len;      /* products: the matrix */
    bool        own_time;           /* one thread: its CPU time, which other processes disturb less */
    /* attention: the shape, a 1B llama's unless told otherwise */
    uint32_t    n_tokens, n_layers, n_heads, n_kv_heads, head_dim;
} bench;

typedef void (*bench_fn)(void *arg);

/* Times of one call of fn, n_reps of them, after one call to warm up; the number of calls in a repetition
 * grows until it lasts b->seconds. Returns false, times untouched, if one call outlasts the patience. */
bool bench_time(const bench *b, bench_fn fn, void *arg, double *times);
/* "seconds": [..], and the end of the line. */
void bench_put_times(const bench *b, const double *times);
void bench_put_skipped(void);
/* Is `name` in a comma-separated list? Yes if the list is NULL. */
bool bench_wants(const char *list, const char *name);
/* Pages for n bytes, or the program ends with a word. */
void *bench_pages(size_t n_bytes);
uint32_t bench_random(void);
/* Bytes 0x20..0x2f: whatever format reads them, scales are normal numbers and nothing overflows. */
void bench_fill_weights(void *p, size_t n_bytes);
void bench_fill_floats(float *p, size_t n);     /* [-1, 1) */

void bench_limits(const bench *b);
void bench_products(const bench *b, const plp_kernels *k);
void bench_vectors(const bench *b, const plp_kernels *k);
void bench_attention(const bench *b, const plp_kernels *k);

/* peak_*.c: `n` rounds of an instruction that nothing holds up, and what it computes in a round. */
typedef struct bench_peak {
    const char *what;               /* "int8", "f32" */
    const char *tier;               /* the kernel tier whose products use it */
    uint32_t    features;           /* PLP_CPU_* */
    void      (*rounds)(uint64_t n);
    double      ops;                /* a round; a multiply and an add are two */
} bench_peak;
extern const bench_peak bench_peaks_avx2[2], bench_peaks_avxvnni[2], bench_peaks_avx512[2], bench_peaks_neon[2], bench_peaks_dotprod[1], bench_peaks_i8mm[1];

#endif
