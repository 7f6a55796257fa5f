/*
 * text/sampler.c - see sampler.h
 *
 * Everything is computed in double precision with additions, multiplications and divisions only, in a
 * fixed order: the mathematical functions of the system's library differ in their last bits from
 * machine to machine, and a draw that falls between two tokens would then differ as well.
 */
#include "text/sampler.h"

#include <math.h>
#include <string.h>

/* ---- exp and log ------------------------------------------------------------------------------- */

/* e^x for x <= 0: Cody-Waite reduction to |r| <= ln(2)/2, then the series to r^13 / 13!. */
static inline double exp_below(double x)
{
    static const double over_factorial[] = { 1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
                                             1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800 };
    double r, sum = over_factorial[13], scale;
    int64_t n;
    uint64_t bits;

    if (!(x > -708.0))                      /* below 2^-1022: no share of any draw */
        return 0.0;
    n = (int64_t)(x * 1.4426950408889634 - 0.5);
    r = x - (double)n * 0x1.62e42fefa38p-1 - (double)n * 0x1.ef35793c7673p-45;
    for (int k = 12; k >= 0; k--)
        sum = sum * r + over_factorial[k];
    bits = (uint64_t)(n + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return sum * scale;
}

/* ln x for a normal x > 0: the exponent apart, then 2 artanh((m - 1) / (m + 1)). */
static double log_of(double x)
{
    double m, s, s2, sum = 0.0;
    uint64_t bits;
    int64_t exponent;

    memcpy(&bits, &x, sizeof bits);
    exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    s = (m - 1.0) / (m + 1.0);
    s2 = s * s;
    for (int k = 21; k > 0; k -= 2)
        sum = sum * s2 + 1.0 / k;
    return 2.0 * s * sum + (double)exponent * 0.6931471805599453;
}

/* ---- generator --------------------------------------------------------------------------------- */

void plp_rng_seed(plp_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        r->s[i] = z ^ z >> 31;
    }
}

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

float plp_rng_unit(plp_rng *r)
{
    uint64_t *s = r->s;
    const uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return (float)(result >> 40) * 0x1p-24f;
}

/* ---- log softmax ------------------------------------------------------------------------------- */

/* The largest logit's place, lowest of equals; refuses NaN, +inf, and a row of nothing but -inf. */
static plp_status largest(const float *logits, uint32_t n, uint32_t *at, plp_error *err)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (!(logits[i] < INFINITY))
            return plp_fail(err, PLP_E_NUMERIC, "the logit of token %u is %s", i, logits[i] > 0 ? "infinite" : "not a number");
        if (logits[i] > logits[best])
            best = i;
    }
    if (n == 0 || logits[best] == -INFINITY)
        return plp_fail(err, PLP_E_NUMERIC, "all of the %u logits are minus infinity", n);
    *at = best;
    return PLP_OK;
}

static double log_sum(const float *logits, uint32_t n, double max)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        sum += exp_below(logits[i] - max);
    return max + log_of(sum);               /* sum >= 1: the largest adds 1 */
}

plp_status plp_log_softmax(const float *logits, uint32_t n_vocab, float *out, plp_error *err)
{
    uint32_t best;
    const plp_status status = largest(logits, n_vocab, &best, err);
    double total;

    if (status)
        return status;
    total = log_sum(logits, n_vocab, logits[best]);
    for (uint32_t i = 0; i < n_vocab; i++)
        out[i] = (float)(logits[i] - total);
    return PLP_OK;
}

/* ---- candidates -------------------------------------------------------------------------------- */

typedef struct candidate { float logit; int32_t id; } candidate;

_Static_assert(sizeof(candidate) == PLP_SAMPLE_BYTES, "what sampler.h says");

/* What candidates are ordered by: the logit, or the distance of -ln p from the entropy. */
typedef struct order { bool typical; double total, entropy; } order;

static double distance(const order *o, const candidate *c) { return fabs(o->total - c->logit - o->entropy); }

static bool before(const order *o, const candidate *a, const candidate *b)
{
    if (o->typical) {
        const double da = distance(o, a), db = distance(o, b);
        if (da != db)
            return da < db;
    } else if (a->logit != b->logit) {
        return a->logit > b->logit;
    }
    return a->id < b->id;
}

static void sift_down(const order *o, candidate *c, uint32_t n, uint32_t at)
{
    const candidate item = c[at];

    for (uint64_t child; (child = 2 * (uint64_t)at + 1) < n; at = (uint32_t)child) {
        if (child + 1 < n && before(o, &c[child + 1], &c[child]))
            child++;
        if (!before(o, &c[child], &item))
            break;
        c[at] = c[child];
    }
    c[at] = item;
}

/*
 * Keeps the first candidates in the order: `most` of them, or as many as make up `share` of the
 * probability, at least one. They are taken off a heap one by one, so that the cost is that of the
 * ones kept, not of sorting a vocabulary; they end up in order at the front.
 */
static uint32_t keep_first(const order *o, candidate *c, uint32_t n, uint32_t most, double share)
{
    uint32_t kept = 0;
    double sum = 0.0;

    for (uint32_t i = n / 2; i-- > 0; )
        sift_down(o, c, n, i);
    while (kept < n && kept < most && (kept == 0 || sum < share)) {
        const uint32_t last = n - 1 - kept;
        const candidate first = c[0];
        c[0] = c[last];
        c[last] = first;
        sift_down(o, c, last, 0);
        if (share < INFINITY)
            sum += exp_below(first.logit - o->total);
        kept++;
    }
    for (uint32_t i = 0, j = n - 1; i < j; i++, j--) {      /* they lie at the end, first one last */
        const candidate swap = c[i];
        c[i] = c[j];
        c[j] = swap;
    }
    return kept;
}

static float max_logit(const candidate *c, uint32_t n)
{
    float max = c[0].logit;

    for (uint32_t i = 1; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

static order order_of(const candidate *c, uint32_t n, bool typical)
{
    const double max = max_logit(c, n);
    double sum = 0.0, weighted = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        const double p = exp_below(c[i].logit - max);
        sum += p;
        weighted += p * (c[i].logit - max);
    }
    /* total >= max; entropy = sum over p of (total - logit) */
    return (order){ typical, max + log_of(sum), log_of(sum) - weighted / sum };
}

/* ---- settings ---------------------------------------------------------------------------------- */

void plp_sampling_defaults(plp_sampling *s)
{
    *s = (plp_sampling){ .top_p = 1, .typical_p = 1, .repeat_penalty = 1, .penalty_last_n = 64 };
}

static plp_status check(const plp_sampling *p, uint32_t n_vocab, plp_error *err)
{
    const char *wrong = !(p->temperature >= 0 && p->temperature < INFINITY)   ? "temperature must be 0 or more"
                      : !(p->top_p >= 0)                                      ? "top_p must be 0 or more"
                      : !(p->typical_p >= 0)                                  ? "typical_p must be 0 or more"
                      : !(p->min_p >= 0 && p->min_p <= 1)                     ? "min_p must lie between 0 and 1"
                      : !(p->repeat_penalty > 0 && p->repeat_penalty < INFINITY) ? "repeat_penalty must be above 0"
                      : !isfinite(p->presence_penalty)                        ? "presence_penalty must be a number"
                      : !isfinite(p->frequency_penalty)                       ? "frequency_penalty must be a number"
                      : p->penalty_last_n < -1                                ? "penalty_last_n must be -1 or more"
                      : p->n_bias && (!p->bias_ids || !p->bias_values)        ? "bias_ids and bias_values are missing" : NULL;
    if (wrong)
        return plp_fail(err, PLP_E_ARG, "sampling: %s", wrong);
    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias_ids[i] < 0 || (uint32_t)p->bias_ids[i] >= n_vocab)
            return plp_fail(err, PLP_E_ARG, "sampling: bias for token %d; the vocabulary has %u", p->bias_ids[i], n_vocab);
        if (!(p->bias_values[i] < INFINITY))
            return plp_fail(err, PLP_E_ARG, "sampling: the bias of token %d is no number", p->bias_ids[i]);
    }
    return PLP_OK;
}

static bool penalises(const plp_sampling *p)
{
    return p->penalty_last_n != 0 && (p->repeat_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0);
}

/* Candidates of every token, with penalties and bias applied; what is forbidden (-inf) is left out. */
static plp_status collect(const float *logits, uint32_t n_vocab, const int32_t *history, uint32_t n_history,
                          const plp_sampling *p, candidate *c, uint32_t *n_out, plp_error *err)
{
    uint32_t from = 0, n = 0;

    for (uint32_t i = 0; i < n_vocab; i++)
        c[i] = (candidate){ logits[i], 0 };
    if (penalises(p)) {
        if (p->penalty_last_n > 0 && n_history > (uint32_t)p->penalty_last_n)
            from = n_history - (uint32_t)p->penalty_last_n;
        for (uint32_t i = from; i < n_history; i++)         /* `id` counts until the ids are filled in below */
            if (history[i] >= 0 && (uint32_t)history[i] < n_vocab)
                c[history[i]].id++;
        for (uint32_t i = 0; i < n_vocab; i++)
            if (c[i].id) {
                float *x = &c[i].logit;
                *x = *x > 0 ? *x / p->repeat_penalty : *x * p->repeat_penalty;
                *x -= p->presence_penalty + p->frequency_penalty * (float)c[i].id;
            }
    }
    for (uint32_t i = 0; i < p->n_bias; i++)
        c[p->bias_ids[i]].logit += p->bias_values[i];

    for (uint32_t i = 0; i < n_vocab; i++) {
        const float x = c[i].logit;
        if (!(x < INFINITY))
            return plp_fail(err, PLP_E_NUMERIC, "the logit of token %u overflows under its penalties and bias", i);
        if (x > -INFINITY)
            c[n++] = (candidate){ x, (int32_t)i };
    }
    if (n == 0)
        return plp_fail(err, PLP_E_NUMERIC, "penalties and bias leave no token");
    *n_out = n;
    return PLP_OK;
}

static int32_t greedy(const candidate *c, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (c[i].logit > c[best].logit)
            best = i;
    return c[best].id;
}

static int32_t draw(const candidate *c, uint32_t n, double temperature, plp_rng *rng)
{
    const double max = max_logit(c, n);
    double sum = 0.0, target;
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += exp_below((c[i].logit - max) / temperature);
    target = plp_rng_unit(rng) * sum;
    sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const double p = exp_below((c[i].logit - max) / temperature);
        if (p > 0)
            last = i;
        if ((sum += p) > target)
            return c[i].id;
    }
    return c[last].id;                      /* target < sum, so only a rounding can lead here */
}

/* top-k, typical, top-p, min-p: each sees what the one before has left. */
static uint32_t filter(candidate *c, uint32_t n, const plp_sampling *p)
{
    if (p->top_k > 0 && (uint32_t)p->top_k < n)
        n = keep_first(&(order){ 0 }, c, n, (uint32_t)p->top_k, INFINITY);
    if (p->typical_p < 1) {
        const order o = order_of(c, n, true);
        n = keep_first(&o, c, n, n, p->typical_p);
    }
    if (p->top_p < 1) {
        const order o = order_of(c, n, false);
        n = keep_first(&o, c, n, n, p->top_p);
    }
    if (p->min_p > 0) {
        const double max = max_logit(c, n);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (exp_below(c[i].logit - max) >= p->min_p)
                c[kept++] = c[i];
        n = kept;
    }
    return n;
}

plp_status plp_sample(const float *logits, uint32_t n_vocab, const int32_t *history, uint32_t n_history,
                      const plp_sampling *p, plp_rng *rng, void *work, int32_t *token, float *logprob, plp_error *err)
{
    candidate *c = work;
    uint32_t best, n = 0;
    int32_t chosen;
    plp_status status;

    if ((status = check(p, n_vocab, err)) || (status = largest(logits, n_vocab, &best, err)))
        return status;
    if (p->temperature == 0 && !penalises(p) && p->n_bias == 0) {
        chosen = (int32_t)best;
    } else {
        if ((status = collect(logits, n_vocab, history, n_history, p, c, &n, err)))
            return status;
        chosen = p->temperature == 0 ? greedy(c, n) : draw(c, filter(c, n, p), p->temperature, rng);
    }
    *token = chosen;
    if (logprob)
        *logprob = (float)(logits[chosen] - log_sum(logits, n_vocab, logits[best]));
    return PLP_OK;
}
