/*
 * tests/cross/follow.c - what a build of the library predicts along a given text, for comparing builds and CPUs
 *
 *   follow MODEL N_PROMPT ID ID ...
 *
 * Computes the first N_PROMPT ids, then the others one by one. Before each of those, prints one line: the most
 * likely next id and a checksum of all logits, which is equal wherever the arithmetic is.
 */
#include "plp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const plp_error *err)
{
    fprintf(stderr, "follow: %s\n", err->msg);
    return 1;
}

/* FNV-1a over the bits. */
static uint32_t checksum(const float *x, uint32_t n)
{
    uint32_t sum = 2166136261u, bits;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(&bits, &x[i], 4);
        sum = (sum ^ bits) * 16777619u;
    }
    return sum;
}

int main(int argc, char **argv)
{
    enum { MAX_IDS = 2048 };
    static int32_t ids[MAX_IDS];
    const int n_ids = argc - 3, n_prompt = argc > 2 ? atoi(argv[2]) : 0;
    plp_engine_options options;
    plp_sampling greedy;
    plp_engine_info info;
    plp_engine *engine = NULL;
    plp_session *session = NULL;
    plp_error err = { 0 };

    if (n_prompt < 1 || n_ids < n_prompt || n_ids > MAX_IDS) {
        fprintf(stderr, "usage: follow MODEL N_PROMPT ID ID ...\n");
        return 2;
    }
    for (int i = 0; i < n_ids; i++)
        ids[i] = atoi(argv[3 + i]);

    plp_engine_defaults(&options);
    plp_sampling_defaults(&greedy);
    options.context_limit = MAX_IDS;
    if (plp_engine_open(&engine, argv[1], &options, &err) || plp_session_open(&session, engine, &err)
        || plp_session_feed(session, ids, (uint32_t)n_prompt, &err))
        return failed(&err);
    plp_engine_get_info(engine, &info);
    printf("tier %s\n", info.tier);

    for (int i = n_prompt; ; i++) {
        uint32_t n_pending = 1;
        int32_t token;
        float logprob;
        while (n_pending)
            if (plp_session_step(session, &n_pending, &err))
                return failed(&err);
        if (plp_session_sample(session, &greedy, &token, &logprob, &err))
            return failed(&err);
        printf("%d %08x\n", (int)token, (unsigned)checksum(plp_session_logits(session), info.n_vocab));
        if (i == n_ids)
            break;
        if (plp_session_feed(session, &ids[i], 1, &err))
            return failed(&err);
    }
    plp_session_close(session);
    plp_engine_close(engine);
    return 0;
}
