/*
 * backend/emu/emu.c - the emulator as a device: its memory is the host's, and a list runs when it is given
 *
 * PLP_EMU_ORDER in the environment is the seed of the fibers' orders (0: threads in order).
 */
#include "backend/emu/emu.h"
#include "backend/gpu/device.h"
#include "base/mem.h"
#include "base/platform.h"

#include <stdlib.h>
#include <string.h>

typedef struct emu {
    plp_gpu_device base;
    uint32_t       seed;
    void          *staging;
    plp_error      failure;
} emu;

static void emu_close(plp_gpu_device *d)
{
    plp_free(((emu *)d)->staging);
    plp_free(d);
}

static plp_status memory(plp_gpu_device *d, size_t n_bytes, void **out, plp_error *err)
{
    void *p = plp_pages_map(n_bytes);
    if (!p)
        return plp_fail(err, PLP_E_NOMEM, "emulator: %zu bytes refused", n_bytes);
    *out = p;
    return PLP_OK;
}

static void release(plp_gpu_device *d, void *p, size_t n_bytes) { plp_pages_unmap(p, n_bytes); }

static plp_status staging(plp_gpu_device *d, size_t n_bytes, void **host, void **address, plp_error *err)
{
    emu *e = (emu *)d;
    void *p = plp_alloc(PLP_MEM_SCRATCH, n_bytes, 1);
    if (!p)
        return plp_fail(err, PLP_E_NOMEM, "emulator: %zu bytes refused", n_bytes);
    plp_free(e->staging);
    *host = *address = e->staging = p;
    return PLP_OK;
}

/* In place, where the file laid it out well. */
static void *weights(plp_gpu_device *d, const void *host, size_t n_bytes) { return (uintptr_t)host % 4 ? NULL : (void *)host; }

static void run(plp_gpu_device *d, const plp_gpu_command *list, uint32_t n, size_t n_staged)
{
    emu *e = (emu *)d;
    char text[160];

    for (uint32_t i = 0; i < n && e->failure.status >= 0; i++) {
        if (e->seed)
            e->seed = e->seed * 1664525u + 1013904223u;
        if (!plp_simt_launch(plp_emu_kernels[list[i].kernel], list[i].args, list[i].groups, list[i].n_threads, e->seed, text, sizeof text))
            plp_fail(&e->failure, PLP_E_UNSUPPORTED, "emulator: kernel %u, %s", list[i].kernel, text);
    }
}

static plp_status wait_done(plp_gpu_device *d, plp_error *err)
{
    emu *e = (emu *)d;
    if (e->failure.status < 0 && err)
        *err = e->failure;
    return e->failure.status;
}

static void put(plp_gpu_device *d, void *address, const void *host, size_t n_bytes)      { memcpy(address, host, n_bytes); }
static void get(plp_gpu_device *d, void *host, const void *address, size_t n_bytes)      { memcpy(host, address, n_bytes); }

static const plp_gpu_driver driver = {
    .name = "emu", .close = emu_close, .memory = memory, .release = release, .staging = staging, .weights = weights,
    .run = run, .wait = wait_done, .write = put, .read = get,
};

plp_status plp_emu_backend_open(plp_backend **out, plp_error *err)
{
    const char *order = getenv("PLP_EMU_ORDER");
    emu *e = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *e);
    if (!e)
        return plp_fail(err, PLP_E_NOMEM, "emulator: no memory");
    e->base.driver = &driver;
    e->seed = order && *order ? (uint32_t)strtoul(order, NULL, 10) : 1;
    return plp_gpu_backend_open(out, &e->base, err);
}
