/*
 * model/experts.c - the feed-forward of a mixture of experts
 *
 *   route    scores from Wrouter x, by a softmax or sigmoids; the n_chosen largest (a bias may help the
 *            choice), equal ones by rising index; their weights are the scores, perhaps divided by their sum
 *   run      expert after expert, each for all tokens that chose it
 *   y        a token's sum over its experts in rising index, the shared expert last: the order depends on
 *            its own choice alone, so the sum has the same bits in every batch
 *
 * Routing is the host's: a few hundred comparisons per token, and the sizes of what follows depend on it.
 */
#include "model/model.h"
#include "base/mem.h"
#include "kernels/ref/math.h"

#include <string.h>

typedef struct plp_routing {
    float    *logits;                       /* [max_tokens][n_experts] */
    uint16_t *chosen;                       /* [max_tokens][n_chosen], best first */
    float    *weight;                       /* [max_tokens][n_chosen] */
    uint32_t *end;                          /* [n_experts]: where the expert's tokens end in `rows` */
    int32_t  *rows;                         /* [max_tokens * n_chosen]: token rows by expert, rising within each */
    float    *scale;                        /* beside rows: their weights */
    int32_t  *each, *zero;                  /* [max_tokens]: 0, 1, 2 ..; 0, 0, 0 .. */
    float    *zero_row;                     /* [n_embd], in backend memory */
} plp_routing;

plp_status plp_experts_open(plp_model *m, plp_error *err)
{
    const size_t n = m->max_tokens, slots = n * m->n_chosen;
    plp_routing *r = m->routing = plp_zalloc(PLP_MEM_SCRATCH, 1, sizeof *r);
    float *zeros = plp_zalloc(PLP_MEM_SCRATCH, m->n_embd, sizeof *zeros);

    if (!r || !zeros || !(r->logits = plp_alloc(PLP_MEM_SCRATCH, n * m->n_experts, sizeof *r->logits)) ||
        !(r->chosen = plp_alloc(PLP_MEM_SCRATCH, slots, sizeof *r->chosen)) ||
        !(r->weight = plp_alloc(PLP_MEM_SCRATCH, slots, sizeof *r->weight)) ||
        !(r->end = plp_alloc(PLP_MEM_SCRATCH, m->n_experts, sizeof *r->end)) ||
        !(r->rows = plp_alloc(PLP_MEM_SCRATCH, slots, sizeof *r->rows)) ||
        !(r->scale = plp_alloc(PLP_MEM_SCRATCH, slots > n ? slots : n, sizeof *r->scale)) ||
        !(r->each = plp_alloc(PLP_MEM_SCRATCH, n, sizeof *r->each)) || !(r->zero = plp_zalloc(PLP_MEM_SCRATCH, n, sizeof *r->zero))) {
        plp_free(zeros);
        return plp_fail(err, PLP_E_NOMEM, "model: no memory to route %zu tokens to %u experts", n, m->n_experts);
    }
    for (size_t i = 0; i < n; i++)
        r->each[i] = (int32_t)i;
    const plp_room rooms[] = {
        { &m->route, n * m->n_experts }, { &m->expert_x, n * m->n_embd }, { &m->expert_y, n * m->n_embd }, { &r->zero_row, m->n_embd },
    };
    const plp_status s = plp_rooms_make(m, rooms, sizeof rooms / sizeof *rooms, err);
    if (s >= 0)
        PLP_OPS(upload, r->zero_row, zeros, m->n_embd * sizeof *zeros);
    plp_free(zeros);
    return s;
}

void plp_experts_close(plp_model *m)
{
    plp_routing *r = m->routing;
    if (!r)
        return;
    plp_free(r->logits);
    plp_free(r->chosen);
    plp_free(r->weight);
    plp_free(r->end);
    plp_free(r->rows);
    plp_free(r->scale);
    plp_free(r->each);
    plp_free(r->zero);
    plp_free(r);
}

/* The n_chosen largest of logits, ties to the lower index. NaN is never larger. */
static void pick(const plp_model *m, const float *logits, uint16_t *chosen)
{
    bool taken[PLP_MAX_EXPERTS] = { false };

    for (uint32_t i = 0; i < m->n_chosen; i++) {
        int32_t best = -1;
        for (uint32_t e = 0; e < m->n_experts; e++)
            if (!taken[e] && (best < 0 || logits[e] > logits[best]))
                best = (int32_t)e;
        taken[best] = true;
        chosen[i] = (uint16_t)best;
    }
}

/* One token's experts and their weights, from its logits. */
static void choose(const plp_model *m, const plp_layer *y, const float *logits, uint16_t *chosen, float *weight)
{
    float score[PLP_MAX_EXPERTS], biased[PLP_MAX_EXPERTS], sum = 0;

    if (m->route_sigmoid) {
        for (uint32_t e = 0; e < m->n_experts; e++) {
            score[e] = 1 / (1 + plp_exp(-logits[e]));
            biased[e] = y->choice_bias ? score[e] + y->choice_bias[e] : score[e];
        }
        pick(m, biased, chosen);
    } else {
        pick(m, logits, chosen);            /* the order of a softmax is that of its logits */
        for (uint32_t e = 0; e < m->n_experts; e++)
            score[e] = plp_exp(logits[e] - logits[chosen[0]]);
        for (uint32_t e = 0; m->route_all && e < m->n_experts; e++)
            sum += score[e];
    }
    for (uint32_t i = 0; i < m->n_chosen; i++) {
        weight[i] = score[chosen[i]];
        sum += m->route_all ? 0 : weight[i];
    }
    if (m->route_sigmoid && m->route_all)
        sum = 1;                            /* sigmoids as they are */
    for (uint32_t i = 0; i < m->n_chosen; i++)
        weight[i] = weight[i] / sum * m->expert_scale * (y->expert_scale ? y->expert_scale[chosen[i]] : 1);
}

/* From (token, choice) to lists by expert. */
static void sort_by_expert(const plp_model *m, plp_routing *r, uint32_t n)
{
    memset(r->end, 0, m->n_experts * sizeof *r->end);
    for (uint32_t i = 0; i < n * m->n_chosen; i++)
        r->end[r->chosen[i]]++;
    for (uint32_t e = 0, before = 0, here; e < m->n_experts; e++, before += here) {
        here = r->end[e];
        r->end[e] = before;                 /* begins here; filling moves it to its end */
    }
    for (uint32_t i = 0; i < n * m->n_chosen; i++) {
        const uint32_t at = r->end[r->chosen[i]]++;
        r->rows[at] = (int32_t)(i / m->n_chosen);
        r->scale[at] = r->weight[i];
    }
}

static void route(plp_model *m, const plp_layer *y, const float *x, uint32_t n)
{
    plp_routing *r = m->routing;

    PLP_OPS(linear, &(plp_product){ &y->router, y->router_b.data, m->route, m->n_experts }, 1, x, m->n_embd, n);
    PLP_OPS(download, r->logits, m->route, (size_t)n * m->n_experts * sizeof *r->logits);
    for (uint32_t t = 0; t < n; t++)
        choose(m, y, r->logits + (size_t)t * m->n_experts, r->chosen + (size_t)t * m->n_chosen,
               r->weight + (size_t)t * m->n_chosen);
    sort_by_expert(m, r, n);
}

/* expert_y = the expert's output for n rows x */
static void run_expert(plp_model *m, const plp_expert *e, const float *x, uint32_t n)
{
    const uint32_t d = m->n_embd, ff = e->up.rows;

    PLP_OPS(linear, (plp_product[]){ { &e->gate, e->b_gate.data, m->gate, ff }, { &e->up, e->b_up.data, m->up, ff } }, 2, x, d, n);
    PLP_OPS(glu, m->gate, m->gate, m->up, ff, n, ff, m->arch->act);
    PLP_OPS(linear, &(plp_product){ &e->down, e->b_down.data, m->expert_y, d }, 1, m->gate, ff, n);
}

static void run_shared(plp_model *m, const plp_layer *y, const float *x, float *out, uint32_t n)
{
    plp_routing *r = m->routing;

    run_expert(m, &y->shared, x, n);
    if (!y->shared_gate.data) {
        PLP_OPS(add, out, m->expert_y, (size_t)n * m->n_embd);
        return;
    }
    PLP_OPS(linear, &(plp_product){ &y->shared_gate, NULL, m->route, 1 }, 1, x, m->n_embd, n);
    PLP_OPS(download, r->scale, m->route, n * sizeof *r->scale);
    for (uint32_t t = 0; t < n; t++)
        r->scale[t] = 1 / (1 + plp_exp(-r->scale[t]));
    PLP_OPS(scatter_add, out, m->expert_y, m->n_embd, r->each, r->scale, n);
}

void plp_experts_run(plp_model *m, const plp_layer *y, const float *x, const float *by, float *out, uint32_t n)
{
    plp_routing *r = m->routing;

    route(m, y, by, n);
    PLP_OPS(gather, out, r->zero_row, m->n_embd, r->zero, n);
    for (uint32_t e = 0, from = 0; e < m->n_experts; from = r->end[e++]) {
        const uint32_t here = r->end[e] - from;
        if (!here)
            continue;
        PLP_OPS(gather, m->expert_x, x, m->n_embd, r->rows + from, here);
        run_expert(m, &y->experts[e], m->expert_x, here);
        PLP_OPS(scatter_add, out, m->expert_y, m->n_embd, r->rows + from, r->scale + from, here);
    }
    if (y->shared.up.data)
        run_shared(m, y, x, out, n);
}
