/*
 * check_gpu.c - the portable GPU kernels through the emulator, three fiber orders, against the CPU; and the
 * emulator itself: it must notice threads that do not meet, and do nothing else than the kernel does
 */
#include "check.h"

#ifndef PLP_EMU
int main(void) { CHECK_SKIP("built without the emulator"); }
#else
#include "gpu_suite.h"

#include "backend/devices.h"

/* ---- the emulator ---- */

typedef struct probe { uint32_t *out; } probe;

static void meets(const void *args)
{
    static uint32_t shared[64];
    const probe *p = args;
    shared[plp_simt.thread] = (uint32_t)plp_simt.thread * 3;
    plp_simt_barrier(1);
    p->out[plp_simt.group[0] * 64 + plp_simt.thread] = shared[63 - plp_simt.thread] + plp_simt_xor((uint32_t)plp_simt.thread, 5);
}
static void lacks_barrier(const void *args)
{
    static uint32_t shared[64];
    const probe *p = args;
    shared[plp_simt.thread] = (plp_simt.group[0] + 1) * 100;
    p->out[plp_simt.group[0] * 64 + plp_simt.thread] = shared[63 - plp_simt.thread];
}
static void leaves_early(const void *args)      { if (plp_simt.thread < 40) plp_simt_barrier(1); }
static void two_barriers(const void *args)      { if (plp_simt.thread < 32) plp_simt_barrier(1); else plp_simt_barrier(2); }
static void half_a_simdgroup(const void *args)  { if (plp_simt.thread % 32 < 16) plp_simt_barrier_simd(1); }
static void other_masks(const void *args)       { plp_simt_xor(0, plp_simt.thread % 2 ? 1 : 2); }
/* One simdgroup meets often while the other waits: no deadlock. */
static void uneven(const void *args)
{
    for (int i = 0; plp_simt.thread < 32 && i < 1000; i++)
        plp_simt_barrier_simd(7);
    plp_simt_barrier(8);
}

static void check_emulator(void)
{
    uint32_t out[3 * 64];
    const uint32_t groups[2] = { 3, 1 };
    char text[160];
    int wrong = 0;

    for (uint32_t seed = 0; seed < 4; seed++) {
        memset(out, 0, sizeof out);
        CHECK(plp_simt_launch(meets, &(probe){ out }, groups, 64, seed, text, sizeof text), "%s", text);
        for (uint32_t i = 0; i < 3 * 64; i++)
            CHECK(out[i] == (63 - i % 64) * 3 + (i % 64 ^ 5), "out[%u] is %u", i, out[i]);
        CHECK(plp_simt_launch(uneven, NULL, groups, 64, seed, text, sizeof text), "%s", text);
        CHECK(!plp_simt_launch(leaves_early, NULL, groups, 64, seed, text, sizeof text), "threads that leave before a barrier pass");
        CHECK(!plp_simt_launch(two_barriers, NULL, groups, 64, seed, text, sizeof text), "two different barriers pass for one");
        CHECK(!plp_simt_launch(half_a_simdgroup, NULL, groups, 64, seed, text, sizeof text), "half a simdgroup passes for one");
        CHECK(!plp_simt_launch(other_masks, NULL, groups, 64, seed, text, sizeof text), "lanes with different masks pass");
        CHECK(strstr(text, "not all threads"), "\"%s\"", text);
        CHECK(plp_simt_launch(lacks_barrier, &(probe){ out }, groups, 64, seed, text, sizeof text), "%s", text);
        for (uint32_t i = 0; i < 3 * 64; i++)
            wrong += out[i] != (i / 64 + 1) * 100;
    }
    CHECK(wrong > 0, "a missing barrier goes unnoticed");
    CHECK(!plp_simt_launch(uneven, NULL, groups, 33, 1, text, sizeof text), "33 threads");
}

/* ---- devices ---- */

static void check_devices(void)
{
    static const char *const names[] = { "cpu", "cuda", "metal", "emu" };
    plp_device d;
    plp_error err;

    for (uint32_t i = 0; i < 4; i++) {
        CHECK(plp_device_info(i, &d, &err) == PLP_OK && !strcmp(d.name, names[i]) && strlen(d.what) > 3 && !strchr(d.what, '\n'), "%u: %s: %s", i, d.name, d.what);
        CHECK(d.is_there || strcmp(d.name, "cpu"), "no CPU");
        /* What is said not to be there cannot be opened, and the error says why. */
        plp_backend *b = NULL;
        const plp_status s = plp_backend_open(&b, d.name, 1, &err);
        CHECK(d.is_there == (s == PLP_OK), "%s is %sthere, but opening it says %s", d.name, d.is_there ? "" : "not ", plp_status_name(s));
        if (s == PLP_OK)
            b->ops->close(b);
        else
            CHECK(strstr(err.msg, d.name) && !strchr(err.msg, '\n'), "\"%s\"", err.msg);
    }
    CHECK(plp_device_info(4, &d, &err) == PLP_E_ARG, "a fifth device");
}

/* ---- the kernels ---- */

static void orders(uint32_t seed) { run_suite(plp_emu_kernels, seed, seed != 1); }
static void first_order(void)  { orders(1); }
static void second_order(void) { orders(20011); }
static void third_order(void)  { orders(0x5eed5eed); }

int main(void)
{
    RUN(check_emulator);
    RUN(check_devices);
    RUN(first_order);
    RUN(second_order);
    RUN(third_order);
    return check_done();
}
#endif
