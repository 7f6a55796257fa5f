/*
 * tests/native/check_sampler.c - the sampler against distributions worked out by hand
 *
 * A draw's distribution is checked by counting: 40,000 draws from a fixed seed, and a bound of five
 * standard deviations of the binomial count, so that a right sampler fails once in millions of seeds
 * and this seed is known to pass.
 */
#include <math.h>

#include "check.h"
#include "text/sampler.h"

enum { MOST = 4096, DRAWS = 40000 };
static uint64_t work[MOST];

static plp_sampling plain(float temperature)
{
    plp_sampling p;
    plp_sampling_defaults(&p);
    p.temperature = temperature;
    return p;
}

static int32_t sample(const float *logits, uint32_t n, const plp_sampling *p, plp_rng *rng)
{
    plp_error err = { 0 };
    int32_t token = -1;
    CHECK(!plp_sample(logits, n, NULL, 0, p, rng, work, &token, NULL, &err), "%s", err.msg);
    return token;
}

/* Draws many times and compares the counts with the probabilities `want`. */
static void distribution(const float *logits, uint32_t n, const plp_sampling *p, const double *want, int line)
{
    static uint32_t counts[MOST];
    plp_rng rng;

    memset(counts, 0, sizeof counts);
    plp_rng_seed(&rng, 1234);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t token = sample(logits, n, p, &rng);
        CHECK(token >= 0 && (uint32_t)token < n, "token %d", token);
        counts[token]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        const double mean = want[i] * DRAWS, spread = 5 * sqrt(mean * (1 - want[i]));
        CHECK(fabs(counts[i] - mean) <= spread, "line %d: token %u drawn %u times, want %.1f", line, i, counts[i], mean);
    }
}
#define DISTRIBUTION(logits, p, ...) distribution(logits, sizeof logits / sizeof *logits, p, (const double[]){ __VA_ARGS__ }, __LINE__)

/* Logits whose softmax is 0.5, 0.25, 0.125, 0.0625, 0.0625, shuffled and shifted. */
static const float halves[5] = { 7.0f - 2.0794415f, 7.0f - 0.6931472f, 7.0f - 2.7725887f, 7.0f - 1.3862944f, 7.0f - 2.7725887f };

static void filters(void)
{
    plp_sampling p = plain(1);

    DISTRIBUTION(halves, &p, 0.125, 0.5, 0.0625, 0.25, 0.0625);
    p.top_k = 3;
    DISTRIBUTION(halves, &p, 1.0 / 7, 4.0 / 7, 0, 2.0 / 7, 0);
    p.top_k = 4;                            /* a tie for the fourth place: the lower id */
    DISTRIBUTION(halves, &p, 2.0 / 15, 8.0 / 15, 1.0 / 15, 4.0 / 15, 0);
    p.top_k = 99;
    DISTRIBUTION(halves, &p, 0.125, 0.5, 0.0625, 0.25, 0.0625);

    p = plain(1);
    p.top_p = 0.7f;                         /* 0.5 is not enough, 0.75 is */
    DISTRIBUTION(halves, &p, 0, 2.0 / 3, 0, 1.0 / 3, 0);
    p.top_p = 0.0f;                         /* at least one */
    DISTRIBUTION(halves, &p, 0, 1, 0, 0, 0);
    p.top_p = 0.7f;
    p.top_k = 2;                            /* of what top-k left: 2/3 and 1/3, and the first falls short */
    DISTRIBUTION(halves, &p, 0, 2.0 / 3, 0, 1.0 / 3, 0);
    p.top_p = 0.6f;
    DISTRIBUTION(halves, &p, 0, 1, 0, 0, 0);

    p = plain(1);
    p.min_p = 0.2f;                         /* of the largest: 0.1 and above */
    DISTRIBUTION(halves, &p, 1.0 / 7, 4.0 / 7, 0, 2.0 / 7, 0);
    p.min_p = 1;
    DISTRIBUTION(halves, &p, 0, 1, 0, 0, 0);

    /* The entropy is 1.875 bits; the surprises 1, 2, 3, 4, 4 lie at 0.875, 0.125, 1.125, 2.125, 2.125 from it. */
    p = plain(1);
    p.typical_p = 0.2f;
    DISTRIBUTION(halves, &p, 0, 0, 0, 1, 0);
    p.typical_p = 0.7f;
    DISTRIBUTION(halves, &p, 0, 2.0 / 3, 0, 1.0 / 3, 0);
    p.typical_p = 0.8f;
    DISTRIBUTION(halves, &p, 1.0 / 7, 4.0 / 7, 0, 2.0 / 7, 0);

    p = plain(0.5f);                        /* squares */
    DISTRIBUTION(halves, &p, 4.0 / 86, 64.0 / 86, 1.0 / 86, 16.0 / 86, 1.0 / 86);
    p.top_p = 0.7f;                         /* filters see the probabilities before temperature */
    DISTRIBUTION(halves, &p, 0, 4.0 / 5, 0, 1.0 / 5, 0);
}

static void greedy(void)
{
    static const float tie[] = { 1, 3, 2, 3, 3 };
    static const float masked[] = { -INFINITY, -1e30f, -INFINITY };
    plp_sampling p = plain(0);
    plp_rng rng;

    plp_rng_seed(&rng, 1);
    const plp_rng before = rng;
    CHECK(sample(tie, 5, &p, &rng) == 1, "the lowest id of a tie");
    CHECK(sample(masked, 3, &p, &rng) == 1, "minus infinity is never chosen");
    p.repeat_penalty = 1.5f;                /* another path, the same answer */
    CHECK(sample(tie, 5, &p, &rng) == 1 && sample(masked, 3, &p, &rng) == 1, "with penalties");
    CHECK(!memcmp(&before, &rng, sizeof rng), "greedy draws nothing");
    p = plain(1);
    for (int i = 0; i < 100; i++)
        CHECK(sample(masked, 3, &p, &rng) == 1, "minus infinity is never drawn");
}

/* Penalties, by the logits that they must lead to: greedy follows the best of them. */
static int32_t penalised(const float *logits, uint32_t n, const int32_t *history, uint32_t n_history, const plp_sampling *p)
{
    plp_error err = { 0 };
    plp_rng rng;
    int32_t token = -1;
    plp_rng_seed(&rng, 1);
    CHECK(!plp_sample(logits, n, history, n_history, p, &rng, work, &token, NULL, &err), "%s", err.msg);
    return token;
}

static void penalties(void)
{
    static const float logits[] = { 4.0f, 3.0f, -1.0f, -2.0f };
    static const float low[] = { -4.0f, -3.0f, -3.5f };
    static const int32_t history[] = { 1, 0, 0, 99, -5 };
    plp_sampling p = plain(0);

    CHECK(penalised(logits, 4, history, 5, &p) == 0, "none set");
    p.repeat_penalty = 1.4f;                /* 4 / 1.4 = 2.86; without token 1 in sight 3 wins */
    p.penalty_last_n = 4;
    CHECK(penalised(logits, 4, history, 5, &p) == 1, "positive: divided");
    p.penalty_last_n = -1;                  /* 3 / 1.4 = 2.14 */
    CHECK(penalised(logits, 4, history, 5, &p) == 0, "the whole history");
    p.penalty_last_n = 0;
    CHECK(penalised(logits, 4, history, 5, &p) == 0, "off");
    p.penalty_last_n = 64;
    CHECK(penalised(low, 3, history, 5, &p) == 2, "negative: multiplied: -3 becomes -4.2");

    p = plain(0);
    p.presence_penalty = 1.5f;              /* 2.5 and 1.5 */
    CHECK(penalised(logits, 4, history + 1, 2, &p) == 1 && penalised(logits, 4, history, 3, &p) == 0, "presence counts once");
    p = plain(0);
    p.frequency_penalty = 0.6f;             /* 4 - 1.2 against 3 - 0.6 or 3 */
    CHECK(penalised(logits, 4, history + 1, 2, &p) == 1 && penalised(logits, 4, history, 3, &p) == 0, "frequency counts each");

    p = plain(0);
    p.n_bias = 2;
    p.bias_ids = (const int32_t[]){ 3, 0 };
    p.bias_values = (const float[]){ 6.5f, -INFINITY };
    CHECK(penalised(logits, 4, NULL, 0, &p) == 3, "bias adds");
    p.n_bias = 1;
    p.bias_ids = (const int32_t[]){ 0 };
    p.bias_values = (const float[]){ -INFINITY };
    CHECK(penalised(logits, 4, NULL, 0, &p) == 1, "bias forbids");
}

static void refused(const float *logits, uint32_t n, const plp_sampling *p, plp_status want, const char *word, int line)
{
    plp_error err = { 0 };
    plp_rng rng;
    int32_t token = -77;
    float logprob = -77;

    plp_rng_seed(&rng, 1);
    const plp_rng before = rng;
    const plp_status status = plp_sample(logits, n, NULL, 0, p, &rng, work, &token, &logprob, &err);
    CHECK(status == want && strstr(err.msg, word), "line %d: %d '%s', want %d '%s'", line, status, err.msg, want, word);
    CHECK(token == -77 && logprob == -77 && !memcmp(&rng, &before, sizeof rng), "line %d: outputs touched", line);
}
#define REFUSED(logits, n, p, status, word) refused(logits, n, p, status, word, __LINE__)

static void bad_numbers(void)
{
    const float with_nan[] = { 1, NAN, 3 }, with_inf[] = { 1, 2, INFINITY }, nothing[] = { -INFINITY, -INFINITY }, fine[] = { 1, 3e38f };
    static const float temperatures[] = { 0, 0.8f };
    float out[3] = { -77, -77, -77 };
    plp_error err;

    for (int t = 0; t < 2; t++)
        for (int k = 0; k < 4; k++) {
            plp_sampling p = plain(temperatures[t]);
            if (k == 1) p.top_k = 2;
            if (k == 2) p.min_p = 0.1f;
            if (k == 3) p.repeat_penalty = 1.1f;
            REFUSED(with_nan, 3, &p, PLP_E_NUMERIC, "token 1 is not a number");
            REFUSED(with_inf, 3, &p, PLP_E_NUMERIC, "token 2 is infinite");
            REFUSED(nothing, 2, &p, PLP_E_NUMERIC, "minus infinity");
            REFUSED(fine, 0, &p, PLP_E_NUMERIC, "0 logits");
        }
    plp_sampling p = plain(1);
    p.n_bias = 1;
    p.bias_ids = (const int32_t[]){ 1 };
    p.bias_values = (const float[]){ 3e38f };
    REFUSED(fine, 2, &p, PLP_E_NUMERIC, "token 1 overflows");
    p.bias_values = (const float[]){ NAN };
    REFUSED(fine, 2, &p, PLP_E_ARG, "bias of token 1");
    p.bias_ids = (const int32_t[]){ 2 };
    REFUSED(fine, 2, &p, PLP_E_ARG, "token 2; the vocabulary has 2");
    p.bias_ids = (const int32_t[]){ 0, 1 };
    p.bias_values = (const float[]){ -INFINITY, -INFINITY };
    p.n_bias = 2;
    REFUSED(fine, 2, &p, PLP_E_NUMERIC, "leave no token");

#define WRONG(field, value, word) do { plp_sampling q = plain(1); q.field = value; REFUSED(fine, 2, &q, PLP_E_ARG, word); } while (0)
    WRONG(temperature, -1, "temperature");
    WRONG(temperature, NAN, "temperature");
    WRONG(top_p, NAN, "top_p");
    WRONG(top_p, -0.1f, "top_p");
    WRONG(typical_p, -1, "typical_p");
    WRONG(min_p, 1.5f, "min_p");
    WRONG(repeat_penalty, 0, "repeat_penalty");
    WRONG(presence_penalty, INFINITY, "presence_penalty");
    WRONG(frequency_penalty, NAN, "frequency_penalty");
    WRONG(penalty_last_n, -2, "penalty_last_n");

    CHECK(plp_log_softmax(with_nan, 3, out, &err) == PLP_E_NUMERIC && strstr(err.msg, "token 1") && out[0] == -77, "%s", err.msg);
}

/* A logit of 1786, far above where exp overflows. */
static void large_logits(void)
{
    static float logits[320], out[320];
    static const float temperatures[] = { 0, 0.01f, 1, 100 };
    plp_error err;
    plp_rng rng;
    float logprob;
    int32_t token;

    logits[7] = 1786;
    CHECK(!plp_log_softmax(logits, 320, out, &err), "%s", err.msg);
    for (int i = 0; i < 320; i++)
        CHECK(out[i] == (i == 7 ? 0.0f : -1786.0f), "%d: %g", i, out[i]);
    for (int t = 0; t < 4; t++) {
        plp_sampling p = plain(temperatures[t]);
        plp_rng_seed(&rng, 5);
        for (int i = 0; i < 50; i++) {      /* at 100 the others share 319 e^-17.86 = 5.6e-6 */
            CHECK(!plp_sample(logits, 320, NULL, 0, &p, &rng, work, &token, &logprob, &err) && token == 7 && logprob == 0, "%g: %d", temperatures[t], token);
        }
    }
    logits[7] = -3e38f;
    logits[8] = 3e38f;
    CHECK(!plp_log_softmax(logits, 320, out, &err) && out[8] == 0 && out[7] == -INFINITY && out[0] == -3e38f, "%g %g", out[7], out[0]);
}

/* log softmax against the system's functions in long double. */
static void against_libm(void)
{
    static float logits[MOST], out[MOST];
    plp_error err;
    plp_rng rng;

    for (int round = 0; round < 40; round++) {
        const uint32_t n = 1 + check_random() % MOST;
        const float scale = (float[]){ 0.001f, 1, 20, 700 }[round % 4];
        long double max = -1e30L, sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            logits[i] = scale * check_uniform();
            max = logits[i] > max ? logits[i] : max;
        }
        for (uint32_t i = 0; i < n; i++)
            sum += expl(logits[i] - max);
        CHECK(!plp_log_softmax(logits, n, out, &err), "%s", err.msg);
        for (uint32_t i = 0; i < n; i++) {
            const long double want = logits[i] - max - logl(sum);
            CHECK(fabsl(out[i] - want) <= 6e-8L * fabsl(want) + 1e-12L, "%u: %.9g, want %.9Lg", i, out[i], want);
        }
        plp_sampling p = plain(1);          /* and the log-probability that comes with a draw is that one */
        int32_t token;
        float logprob;
        plp_rng_seed(&rng, (uint64_t)round);
        CHECK(!plp_sample(logits, n, NULL, 0, &p, &rng, work, &token, &logprob, &err) && logprob == out[token], "%g, want %g", logprob, out[token]);
    }
}

/* Published values: splitmix64 from 0 begins e220a8397b1dcdaf, 6e789e6aa1b965f4, 06c45d188009454f,
 * f88bb8a8724c81ec, which is the state; xoshiro256** from it begins 99ec5f36cb75f2b4. */
static void generator(void)
{
    plp_rng r, again;

    plp_rng_seed(&r, 0);
    again = r;
    CHECK(r.s[0] == 0xe220a8397b1dcdafu && r.s[1] == 0x6e789e6aa1b965f4u && r.s[2] == 0x06c45d188009454fu && r.s[3] == 0xf88bb8a8724c81ecu, "seed");
    CHECK(plp_rng_unit(&r) == (float)(0x99ec5f36cb75f2b4u >> 40) / 16777216.0f, "first value");
    for (int i = 0; i < 100000; i++) {
        const float u = plp_rng_unit(&r);
        CHECK(u >= 0 && u < 1, "%g", u);
    }
    plp_rng_unit(&again);
    const float a = plp_rng_unit(&again);
    plp_rng_seed(&r, 0);
    plp_rng_unit(&r);
    CHECK(a == plp_rng_unit(&r), "the same seed, the same values");
}

/* Random rows and settings: the token is never one that a plain sort-and-cut reading forbids. */
static void kept_sets(void)
{
    static float logits[200];
    plp_rng rng;

    plp_rng_seed(&rng, 9);
    for (int round = 0; round < 400; round++) {
        const uint32_t n = 2 + check_random() % 198;
        plp_sampling p = plain(1);
        for (uint32_t i = 0; i < n; i++)
            logits[i] = (float)(int)(8 * check_uniform());          /* many ties */
        p.top_k = 1 + (int32_t)(check_random() % n);
        for (int draw = 0; draw < 20; draw++) {
            const int32_t token = sample(logits, n, &p, &rng);
            int32_t rank = 0;
            for (uint32_t i = 0; i < n; i++)
                rank += logits[i] > logits[token] || (logits[i] == logits[token] && (int32_t)i < token);
            CHECK(rank < p.top_k, "rank %d of top %d", rank, p.top_k);
        }
    }
}

int main(void)
{
    RUN(filters);
    RUN(greedy);
    RUN(penalties);
    RUN(bad_numbers);
    RUN(large_logits);
    RUN(against_libm);
    RUN(generator);
    RUN(kept_sets);
    return check_done();
}
