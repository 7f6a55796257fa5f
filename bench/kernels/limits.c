/*
 * bench/kernels/limits.c - what this machine can do at best: reading, and multiplying
 *
 * Read bandwidth is of plain vector loads over a buffer of the given size a thread: larger than any cache,
 * of the size of L2, of the size of L1. Peaks are independent chains of one instruction in registers.
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>

/* One function per register width: of wider vectors than the target has, gcc makes loads and stores of the sums. */
#define READ(name, width, attributes)                                                             \
    attributes static void name(const void *p, size_t n_bytes)                                    \
    {                                                                                             \
        typedef uint64_t vector __attribute__((vector_size(width)));                              \
        const vector *v = p;                                                                      \
        vector a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };                                        \
        for (size_t i = 0; i + 4 <= n_bytes / sizeof *v; i += 4) {                                \
            a ^= v[i]; b ^= v[i + 1]; c ^= v[i + 2]; d ^= v[i + 3];                               \
        }                                                                                         \
        a ^= b ^ c ^ d;                                                                           \
        __asm__ volatile("" : : "m"(a));        /* the sum is wanted, as far as the compiler knows */ \
    }

#if defined __x86_64__
READ(read_sse, 16, )
READ(read_avx2, 32, __attribute__((target("avx2"))))
READ(read_avx512, 64, __attribute__((target("avx512f"))))
#else
READ(read_plain, 16, )
#endif

typedef struct reading {
    const bench *b;
    const char  *data;
    size_t       n_bytes;               /* of a thread's warm part, or of the whole cold buffer */
    bool         shared;                /* the threads take pieces of one buffer */
    void       (*read)(const void *p, size_t n_bytes);
    const bench_peak *peak;
} reading;

enum { PIECE = 1 << 20, WARM_ROUNDS = 64, PEAK_ROUNDS = 20000 };

static void read_part(void *arg, uint32_t id, uint32_t n_threads)
{
    const reading *r = arg;
    if (r->shared)
        for (uint32_t i; (i = plp_team_take(r->b->team, id, (uint32_t)((r->n_bytes + PIECE - 1) / PIECE))) != UINT32_MAX; ) {
            const size_t at = (size_t)i * PIECE;
            r->read(r->data + at, r->n_bytes - at < PIECE ? r->n_bytes - at : PIECE);
        }
    else
        for (int i = 0; i < WARM_ROUNDS; i++)
            r->read(r->data + id * r->n_bytes, r->n_bytes);
}

static void read_all(void *arg) { plp_team_run(((reading *)arg)->b->team, read_part, arg); }

static void peak_part(void *arg, uint32_t id, uint32_t n_threads) { ((reading *)arg)->peak->rounds(PEAK_ROUNDS); }
static void peak_all(void *arg) { plp_team_run(((reading *)arg)->b->team, peak_part, arg); }

static void put_read(const bench *b, const char *what, reading *r, double n_bytes)
{
    double times[BENCH_MAX_REPS];
    if (!bench_wants(b->only, what) || !bench_time(b, read_all, r, times))
        return;
    printf("{\"limit\": \"%s\", \"threads\": %u, \"bytes\": %.0f, ", what, b->n_threads, n_bytes);
    bench_put_times(b, times);
}

static void put_peaks(const bench *b, const bench_peak *peaks, uint32_t n)
{
    double times[BENCH_MAX_REPS];
    for (uint32_t i = 0; i < n; i++) {
        reading r = { .b = b, .peak = &peaks[i] };
        if (!bench_wants(b->only, peaks[i].what) || (plp_cpu_features() & peaks[i].features) != peaks[i].features
            || !bench_time(b, peak_all, &r, times))
            continue;
        printf("{\"limit\": \"%s\", \"tier\": \"%s\", \"threads\": %u, \"ops\": %.0f, ", peaks[i].what, peaks[i].tier,
               b->n_threads, peaks[i].ops * PEAK_ROUNDS * b->n_threads);
        bench_put_times(b, times);
    }
}

void bench_limits(const bench *b)
{
    static const struct { const char *name; size_t n_bytes; } warm[] = { { "read_l1", 16 << 10 }, { "read_l2", 256 << 10 } };
    reading r = { .b = b };

#if defined __x86_64__
    const uint32_t have = plp_cpu_features();
    r.read = have & PLP_CPU_AVX512 ? read_avx512 : have & PLP_CPU_AVX2 ? read_avx2 : read_sse;
#else
    r.read = read_plain;
#endif
    const size_t warm_most = warm[1].n_bytes * b->n_threads;
    const size_t n_bytes = bench_wants(b->only, "read") && b->cold_bytes > warm_most ? b->cold_bytes : warm_most;
    char *data = bench_pages(n_bytes);
    plp_pages_huge(data, n_bytes);
    memset(data, 1, n_bytes);
    r.data = data;
    r.n_bytes = n_bytes;
    r.shared = true;
    put_read(b, "read", &r, (double)r.n_bytes);
    r.shared = false;
    for (int i = 0; i < 2; i++) {
        r.n_bytes = warm[i].n_bytes;
        put_read(b, warm[i].name, &r, (double)r.n_bytes * b->n_threads * WARM_ROUNDS);
    }
    plp_pages_unmap(data, n_bytes);
#if defined __x86_64__
    put_peaks(b, bench_peaks_avx2, 2);
#if PLP_AVXVNNI
    put_peaks(b, bench_peaks_avxvnni, 2);
#endif
    put_peaks(b, bench_peaks_avx512, 2);
#elif defined __aarch64__
    put_peaks(b, bench_peaks_neon, 2);
    put_peaks(b, bench_peaks_dotprod, 1);
    put_peaks(b, bench_peaks_i8mm, 1);
#endif
}
