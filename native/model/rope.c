/*
 * model/rope.c - rotary position embedding: frequencies from metadata, cos and sin of a batch
 *
 *   plain     inv_freq[i] = base ^ (-2i / n_rot)
 *   linear    positions divided by `factor`
 *   YaRN      low frequencies divided by `factor`, high ones kept, a ramp between; attention scaled
 *             (Peng et al. 2023, arXiv 2309.00071)
 *   Llama 3   the file brings a divisor per frequency, rope_freqs.weight
 *   LongRoPE  two lists of divisors: rope_factors_short.weight for contexts up to the original length,
 *             rope_factors_long.weight for longer ones. The engine's context limit decides, not the text's
 *             length: keys that are stored cannot turn once a text grows
 *
 * Everything in double, rounded once to f32, so that long contexts keep their phase.
 */
#include "model/model.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PI 3.14159265358979323846

static const char *key(char *out, size_t n, const char *arch, const char *rest)
{
    snprintf(out, n, "%s.rope.%s", arch, rest);
    return out;
}

/* The dimension at which a wave turns `turns` times over the original context. */
static double turning_dim(double turns, double n_rot, double base, double context)
{
    return n_rot * log(context / (turns * 2 * PI)) / (2 * log(base));
}

static plp_status apply_yarn(plp_rope *r, const plp_file *f, const plp_rope_spec *spec, double base, double factor, plp_error *err)
{
    char name[128];
    uint32_t context, original;
    float attn, fast, slow;
    plp_status s;

    snprintf(name, sizeof name, "%s.context_length", spec->arch);
    if ((s = plp_meta_u32(f, name, 0, &context, err)) < 0 ||
        (s = plp_meta_u32(f, key(name, sizeof name, spec->arch, "scaling.original_context_length"), context, &original, err)) < 0 ||
        (s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "scaling.yarn_attn_factor"), 1, &attn, err)) < 0 ||
        (s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "scaling.yarn_beta_fast"), 32, &fast, err)) < 0 ||
        (s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "scaling.yarn_beta_slow"), 1, &slow, err)) < 0)
        return s;
    const double n = r->n_rot;
    double low = turning_dim(fast, n, base, original), high = turning_dim(slow, n, base, original);
    if (!spec->smooth_yarn) {
        low = floor(low);
        high = ceil(high);
    }
    low = low < 0 ? 0 : low;
    high = high > n - 1 ? n - 1 : high;
    if (high <= low)
        high = low + 0.001;
    for (uint32_t i = 0; i < r->n_rot / 2; i++) {
        double ramp = (i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        r->inv_freq[i] = r->inv_freq[i] / factor * ramp + r->inv_freq[i] * (1 - ramp);
    }
    r->magnitude *= (float)(attn * (factor > 1 ? 0.1 * log(factor) + 1 : 1));
    return PLP_OK;
}

static plp_status apply_divisors(plp_rope *r, const plp_tensor *t, plp_error *err)
{
    if (t->type != PLP_TYPE_F32 || t->n_dims != 1 || t->dims[0] != r->n_rot / 2 || !t->data)
        return plp_fail(err, PLP_E_FILE, "tensor %s: expected F32 [%u], one divisor per rotated pair", t->name, r->n_rot / 2);
    for (uint32_t i = 0; i < r->n_rot / 2; i++) {
        float d;
        memcpy(&d, (const char *)t->data + i * sizeof d, sizeof d);
        if (!(d > 0) || !isfinite(d))
            return plp_fail(err, PLP_E_FILE, "tensor %s: element %u is %g; divisors are positive", t->name, i, d);
        r->inv_freq[i] /= d;
    }
    return PLP_OK;
}

/* The file's divisors, if it has some: one list, or two of which the context limit chooses. */
static plp_status apply_file_divisors(plp_rope *r, const plp_file *f, const plp_rope_spec *spec, plp_error *err)
{
    char name[128];
    uint32_t original;
    const plp_tensor *one = plp_file_tensor_named(f, "rope_freqs.weight");
    const plp_tensor *shorter = plp_file_tensor_named(f, "rope_factors_short.weight");
    const plp_tensor *longer = plp_file_tensor_named(f, "rope_factors_long.weight");
    const plp_status s = plp_meta_u32(f, key(name, sizeof name, spec->arch, "scaling.original_context_length"), UINT32_MAX, &original, err);

    if (s < 0)
        return s;
    const plp_tensor *t = one ? one : spec->context_limit > original ? longer : shorter;
    return t ? apply_divisors(r, t, err) : PLP_OK;
}

static plp_status apply_scaling(plp_rope *r, const plp_file *f, const plp_rope_spec *spec, double base, plp_error *err)
{
    char name[128], type[24];
    float factor, old_linear;
    plp_status s;

    if ((s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "scaling.attn_factor"), 1, &r->magnitude, err)) < 0 ||
        (s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "scale_linear"), 1, &old_linear, err)) < 0 ||
        (s = plp_meta_str(f, key(name, sizeof name, spec->arch, "scaling.type"), old_linear != 1 ? "linear" : "none", type, sizeof type, err)) < 0 ||
        (s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "scaling.factor"), old_linear, &factor, err)) < 0)
        return s;
    if (!(factor > 0) || !isfinite(factor))
        return plp_fail(err, PLP_E_FILE, "%s: %g; a positive factor is needed", name, factor);
    if (!(r->magnitude > 0) || !isfinite(r->magnitude))
        return plp_fail(err, PLP_E_FILE, "%s.rope.scaling.attn_factor: %g; a positive factor is needed", spec->arch, r->magnitude);
    if (!strcmp(type, "linear")) {
        for (uint32_t i = 0; i < r->n_rot / 2; i++)
            r->inv_freq[i] /= factor;
    } else if (!strcmp(type, "yarn")) {
        if ((s = apply_yarn(r, f, spec, base, factor, err)) < 0)
            return s;
    } else if (strcmp(type, "none") && strcmp(type, "") && strcmp(type, "longrope")) {
        return plp_fail(err, PLP_E_UNSUPPORTED, "%s.rope.scaling.type is \"%s\"; none, linear, yarn and longrope are run", spec->arch, type);
    }
    return apply_file_divisors(r, f, spec, err);
}

plp_status plp_rope_open(plp_rope *r, const plp_file *f, const plp_rope_spec *spec, plp_error *err)
{
    char name[128];
    float base;
    plp_status s;

    *r = (plp_rope){ .kind = spec->kind, .magnitude = 1 };
    if ((s = plp_meta_u32(f, key(name, sizeof name, spec->arch, "dimension_count"), spec->head_dim, &r->n_rot, err)) < 0 ||
        (spec->unscaled && (s = plp_meta_u32(f, key(name, sizeof name, spec->arch, "dimension_count_swa"), r->n_rot, &r->n_rot, err)) < 0))
        return s;
    if (r->n_rot == 0 || r->n_rot > spec->head_dim || r->n_rot % 2)
        return plp_fail(err, PLP_E_FILE, "%s: %u rotated dimensions of a head of %u; an even number up to it is possible",
                        name, r->n_rot, spec->head_dim);
    if ((s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "freq_base"), 10000, &base, err)) < 0 ||
        (spec->unscaled && (s = plp_meta_f32(f, key(name, sizeof name, spec->arch, "freq_base_swa"),
                                             spec->base > 0 ? spec->base : base, &base, err)) < 0))
        return s;
    if (!(base > 0) || !isfinite(base))
        return plp_fail(err, PLP_E_FILE, "%s: %g; a positive base is needed", name, base);
    if (!(r->inv_freq = plp_zalloc(PLP_MEM_MODEL, r->n_rot / 2, sizeof *r->inv_freq)))
        return plp_fail(err, PLP_E_NOMEM, "rope: no memory for %u frequencies", r->n_rot / 2);
    for (uint32_t i = 0; i < r->n_rot / 2; i++)
        r->inv_freq[i] = pow(base, -2.0 * i / r->n_rot);
    return spec->unscaled ? PLP_OK : apply_scaling(r, f, spec, base, err);
}

void plp_rope_close(plp_rope *r)
{
    plp_free(r->inv_freq);
    r->inv_freq = NULL;
}

void plp_rope_table(const plp_rope *r, const int32_t *pos, uint32_t n, float *cs)
{
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < r->n_rot / 2; i++, cs += 2) {
            const double angle = pos[t] * r->inv_freq[i];
            cs[0] = (float)(cos(angle) * r->magnitude);
            cs[1] = (float)(sin(angle) * r->magnitude);
        }
}
