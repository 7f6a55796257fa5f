/*
 * text/sampler.h - from logits to the next token
 *
 * Order    penalties and bias, then temperature 0: the largest logit (lowest id on a tie); otherwise
 *          top-k, typical-p, top-p, min-p, temperature, one draw.
 * Exact    the same logits, history, settings and generator state give the same token everywhere.
 *          A NaN, or an infinity other than -inf, is PLP_E_NUMERIC naming the token.
 * Source   top-p: Holtzman et al. 2020; typical: Meister et al. 2022; repetition penalty: CTRL,
 *          Keskar et al. 2019; min-p: Nguyen et al. 2024
 * Threads  one thread at a time per generator
 */
#ifndef PLP_TEXT_SAMPLER_H
#define PLP_TEXT_SAMPLER_H

#include "base/status.h"

typedef struct plp_rng { uint64_t s[4]; } plp_rng;          /* xoshiro256** */
void  plp_rng_seed(plp_rng *r, uint64_t seed);              /* splitmix64 expansion */
float plp_rng_unit(plp_rng *r);                             /* [0, 1), 24 bits */

#define PLP_SAMPLE_BYTES 8u         /* of `work`, a token of the vocabulary: an f32 and an i32 */

/* `work` holds n_vocab * PLP_SAMPLE_BYTES. `history`: the timeline, oldest first.
 * *logprob (may be NULL): log softmax of the raw logits at the token chosen. */
plp_status plp_sample(const float *logits, uint32_t n_vocab, const int32_t *history, uint32_t n_history,
                      const plp_sampling *p, plp_rng *rng, void *work, int32_t *token, float *logprob,
                      plp_error *err);
/* log softmax of logits[0..n) into out; stable for any finite input. */
plp_status plp_log_softmax(const float *logits, uint32_t n_vocab, float *out, plp_error *err);

#endif
