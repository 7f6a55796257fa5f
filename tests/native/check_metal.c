/*
 * check_metal.c - the Metal device's whole path without a Mac: the runtime is a mock, the kernels are emulated
 *
 * Device, library, pipelines, buffers, encoding, results; the GPU suite and, where it is, the default model's
 * first tokens. Shows that the host code asks for the right things in the right order and uses device and
 * host addresses where each belongs; what only Metal itself can show is in docs/architecture.md.
 */
#include "shared.h"

#if !defined PLP_METAL || !defined PLP_EMU || !defined __linux__ || !(defined __x86_64__ || defined __aarch64__)
int main(void) { CHECK_SKIP("needs Linux on x86-64 or AArch64, the emulator, and PLP_METAL"); }
#else
#include "gpu_suite.h"
#include "mock_metal.h"

#include "backend/metal/metal.h"

static void check_operations(void)
{
    plp_error err = { 0 };
    suite s = { .brief = true };
    const plp_plan plan = { .max_tokens = 1024, .max_k = 2048, .n_heads = 32, .n_kv_heads = 1, .head_dim = 256, .block_len = 16 };
    char text[100];

    CHECK(plp_metal_describe(text, sizeof text) && !strcmp(text, "a mock"), "\"%s\"", text);
    CHECK(plp_cpu_backend_open(&s.cpu, 2, &err) == PLP_OK && plp_metal_backend_open(&s.gpu, &err) == PLP_OK, "%s", err.msg);
    if (!s.gpu)
        return;
    CHECK(s.cpu->ops->plan(s.cpu, &plan, &err) == PLP_OK && s.gpu->ops->plan(s.gpu, &plan, &err) == PLP_OK, "%s", err.msg);
    check_norms(&s);
    check_elements(&s);
    check_embed(&s);
    check_kv(&s);
    suite_close(&s);
    CHECK(mock_live == 0, "%ld objects are left", mock_live);
}

static void check_model(void)
{
    static const int32_t tokens[] = { 504, 3575, 282, 4649 };
    float *logits[2] = { NULL, NULL };
    plp_engine_info info = { 0 };
    char path[1024];
    FILE *f = fopen(model_path(path), "rb");

    if (!f) {
        printf("(no default model: its tokens are left out)\n");
        return;
    }
    fclose(f);
    for (int side = 0; side < 2; side++) {
        plp_engine *e = NULL;
        plp_session *s = NULL;
        plp_engine_options o;
        plp_error err = { 0 };
        uint32_t done = 0, pending = 0;
        plp_engine_defaults(&o);
        o.device = side ? "metal" : "cpu";
        CHECK(plp_engine_open(&e, path, &o, &err) == PLP_OK && plp_session_open(&s, e, &err) == PLP_OK, "%s", err.msg);
        if (!s)
            break;
        plp_engine_get_info(e, &info);
        logits[side] = malloc(4 * (size_t)info.n_vocab * sizeof(float));
        CHECK(plp_session_feed(s, tokens, 4, &err) == PLP_OK && plp_session_step_logits(s, logits[side], 4, &done, &pending, &err) == PLP_OK, "%s", err.msg);
        CHECK(done == 4, "%u tokens", done);
        plp_session_close(s);
        plp_engine_close(e);
    }
    if (logits[1])
        CHECK(!memcmp(logits[0], logits[1], 4 * (size_t)info.n_vocab * sizeof(float)), "logits differ from the CPU's");
    CHECK(mock_live == 0, "%ld objects are left", mock_live);
    free(logits[0]);
    free(logits[1]);
}

int main(void)
{
    char text[100];
    CHECK(!plp_metal_describe(text, sizeof text) && strstr(text, "no Metal"), "Linux has Metal: \"%s\"", text);
    plp_metal_objc_path = plp_metal_framework_path = NULL;      /* this program */
    RUN(check_operations);
    RUN(check_model);
    CHECK(mock_wrong == 0, "%ld calls out of order or out of range", mock_wrong);
    CHECK(mock_dispatched > 500 && mock_committed > 50, "%ld dispatches in %ld command buffers", mock_dispatched, mock_committed);
    return check_done();
}
#endif
