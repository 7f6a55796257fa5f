/*
 * engine/guess.c - speculation without a second model: what followed last time is computed beside the next token
 *
 * Before a step of a single token the longest end of the timeline that occurred earlier is looked up; what followed it
 * there is guessed to follow now, and computed in the same pass: keys and values into free slots of the open block,
 * logits into a row each. The timeline does not hold guesses. A token that is fed and was guessed is found computed;
 * another one forgets them, and what their slots hold is overwritten. So nothing is ever taken back, and since logits
 * do not depend on how a timeline was cut, no draw can tell.
 *
 * A guess costs no block: it stays inside the one that the token is in, and does not complete one that would then be
 * sealed in another format.
 *
 * How many are computed follows from two estimates. How likely the next token is to be the guessed one is learned for
 * each length of the match, from every token fed, whether its guess was computed or not: learning costs nothing. What a
 * guess adds to a step is measured.
 */
#include "engine/engine.h"
#include "base/mem.h"

#include <string.h>

#define FIRST_RATE   0.25f      /* of guesses that come true, before anything is known */
#define FIRST_PRICE  0.5f       /* of a guess, in steps of one token */
#define LEARN        0.125f     /* weight of the latest observation */
#define FORGET       (1 / 512.f)/* of a price that is not measured, each step: so that no estimate is final */
#define GAIN         1.05f      /* least one to speculate for */

/* ---- what may follow ---- */

/* The longest match, up to PLP_MAX_MATCH tokens, of the timeline's end with an earlier place; of equals the latest. */
static uint32_t longest_match(const int32_t *t, uint32_t n, uint32_t *after)
{
    uint32_t best = 0;

    for (uint32_t i = n - 1; i-- > 0 && best < PLP_MAX_MATCH; ) {
        uint32_t same = 0;
        while (same < PLP_MAX_MATCH && same <= i && t[i - same] == t[n - 1 - same])
            same++;
        if (same > best) {
            best = same;
            *after = i + 1;
        }
    }
    return best;
}

static uint32_t at_most(uint32_t a, uint32_t b) { return a < b ? a : b; }

static float *rate(plp_guess *g, uint32_t i) { return &g->rate[at_most(g->match + i, PLP_MAX_MATCH)]; }

/* Guesses for which there is a slot. */
static uint32_t room(const plp_session *s)
{
    const plp_engine *e = s->engine;
    const uint32_t len = e->options.block_len, left = len - 1 - (s->n_tokens - 1) % len;
    const bool sealed = plp_sealed_class(e, 0) != plp_open_class(e, 0);

    for (uint32_t i = 0; i < e->model->n_groups; i++)
        if (e->model->group[i].state_bytes)     /* a running state cannot go back */
            return 0;
    return at_most(left - (sealed && left), e->options.context_limit - s->n_tokens);
}

/* Of n guesses, how many make tokens cheapest. */
static uint32_t worth(plp_session *s, uint32_t n)
{
    float likely = 1, expected = 1, best = GAIN;
    uint32_t worth = 0;

    for (uint32_t i = 0; i < n; i++) {
        likely *= *rate(&s->guess, i);
        expected += likely;
        const float gain = expected / (1 + (float)(i + 1) * s->engine->guess_price);
        if (gain > best) {
            best = gain;
            worth = i + 1;
        }
    }
    return worth;
}

uint32_t plp_guess_next(plp_session *s)
{
    plp_engine *e = s->engine;
    plp_guess *g = &s->guess;
    uint32_t after = 0;

    if (g->mode == PLP_SPECULATE_OFF || s->n_tokens - s->n_computed != 1)
        return 0;
    g->match = longest_match(s->tokens, s->n_tokens, &after);
    for (; g->match && g->n < PLP_MAX_GUESSES && after < s->n_tokens && !plp_token_ends(e->vocab, s->tokens[after]); after++)
        g->ids[g->n++] = s->tokens[after];
    g->n_ahead = at_most(g->n, room(s));
    if (g->mode != PLP_SPECULATE_ALWAYS)
        g->n_ahead = worth(s, g->n_ahead);
    if (g->n_ahead && !g->logits && !(g->logits = plp_alloc(PLP_MEM_SESSION, (size_t)PLP_MAX_GUESSES * e->model->n_vocab, sizeof *g->logits)))
        g->n_ahead = 0;
    g->n_drafted += g->n_ahead;
    return g->n_ahead;
}

void plp_guess_forget(plp_session *s)
{
    s->guess.n = s->guess.n_ahead = s->guess.n_fed = 0;
}

/* ---- what did follow ---- */

void plp_guess_fed(plp_session *s, uint32_t n)
{
    plp_guess *g = &s->guess;
    uint32_t n_true = 0;

    for (const int32_t *fed = s->tokens + s->n_tokens - n; n-- && g->n_fed < g->n; fed++) {
        const bool came = *fed == g->ids[g->n_fed];
        float *known = rate(g, g->n_fed);
        *known += ((came ? 1 : 0) - *known) * LEARN;
        if (!came) {
            g->n = 0;
            break;
        }
        n_true += g->n_fed++ < g->n_ahead;
    }
    if (!n_true)
        return;
    g->n_accepted += n_true;
    plp_session_advance(s, n_true);
    if (s->has_logits)
        memcpy(s->logits, g->logits + (size_t)(g->n_fed - 1) * s->engine->model->n_vocab, s->engine->model->n_vocab * sizeof *s->logits);
}

/* ---- what it costs ---- */

void plp_guess_timed(plp_engine *e, uint32_t n_guesses, uint64_t ns)
{
    const float one = e->one_token_ns, took = (float)ns;

    if (!n_guesses) {       /* a step that was held up for long says little about the next */
        e->one_token_ns = one == 0 ? took : one + ((took < 2 * one ? took : 2 * one) - one) * LEARN;
        e->guess_price += (FIRST_PRICE - e->guess_price) * FORGET;
    } else if (one > 0) {
        const float price = (took / one - 1) / (float)n_guesses;
        e->guess_price += ((price < 0 ? 0 : price > 2 ? 2 : price) - e->guess_price) * LEARN;
    }
}

/* ---- settings ---- */

void plp_guess_start(plp_engine *e) { e->guess_price = FIRST_PRICE; }

void plp_guess_init(plp_guess *g)
{
    for (uint32_t i = 0; i <= PLP_MAX_MATCH; i++)
        g->rate[i] = FIRST_RATE;
}

plp_status plp_session_speculate(plp_session *s, int32_t mode, plp_error *err)
{
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    if (mode < PLP_SPECULATE_OFF || mode > PLP_SPECULATE_ALWAYS)
        status = plp_fail(err, PLP_E_ARG, "speculate: mode %d; 0 (off), 1 (where it pays) and 2 (always) are possible", mode);
    else
        s->guess.mode = mode;
    plp_session_leave(s);
    return status;
}

void plp_session_drafts(plp_session *s, uint64_t *n_drafted, uint64_t *n_accepted)
{
    *n_drafted = s->guess.n_drafted;
    *n_accepted = s->guess.n_accepted;
}
