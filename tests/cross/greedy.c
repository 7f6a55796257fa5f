/*
 * tests/cross/greedy.c - the first greedy tokens after a prompt of token ids, for comparing builds and CPUs
 *
 *   greedy MODEL N ID ID ...      prints N ids on one line (fewer at an end token), "tier: ..." on stderr
 */
#include "plp.h"

#include <stdio.h>
#include <stdlib.h>

static int failed(const plp_error *err)
{
    fprintf(stderr, "greedy: %s\n", err->msg);
    return 1;
}

int main(int argc, char **argv)
{
    enum { MAX_PROMPT = 2048 };
    static int32_t prompt[MAX_PROMPT];
    plp_engine_options options;
    plp_sampling greedy;
    plp_engine_info info;
    plp_engine *engine = NULL;
    plp_session *session = NULL;
    plp_sync report;
    plp_error err = { 0 };
    const int n_prompt = argc - 3;

    if (n_prompt < 1 || n_prompt > MAX_PROMPT) {
        fprintf(stderr, "usage: greedy MODEL N ID ID ...\n");
        return 2;
    }
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = atoi(argv[3 + i]);

    plp_engine_defaults(&options);
    plp_sampling_defaults(&greedy);
    options.context_limit = 2 * MAX_PROMPT;
    if (plp_engine_open(&engine, argv[1], &options, &err) || plp_session_open(&session, engine, &err)
        || plp_session_sync(session, prompt, (uint32_t)n_prompt, &report, &err))
        return failed(&err);
    plp_engine_get_info(engine, &info);
    fprintf(stderr, "tier: %s\n", info.tier);

    for (int i = 0; i < atoi(argv[2]); i++) {
        uint32_t n_pending = 1;
        int32_t token;
        float logprob;
        while (n_pending)
            if (plp_session_step(session, &n_pending, &err))
                return failed(&err);
        if (plp_session_sample(session, &greedy, &token, &logprob, &err))
            return failed(&err);
        printf("%s%d", i ? " " : "", (int)token);
        if (plp_token_ends(plp_engine_vocab(engine), token))
            break;
        if (plp_session_feed(session, &token, 1, &err))
            return failed(&err);
    }
    printf("\n");
    plp_session_close(session);
    plp_engine_close(engine);
    return 0;
}
