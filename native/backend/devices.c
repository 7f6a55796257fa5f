/*
 * backend/devices.c - the list of devices by name
 *
 * "auto" is the CPU: the GPU backends have been executed by tests only, not on the hardware they are for,
 * and what nobody has seen run is not a default.
 */
#include "backend/devices.h"
#include "backend/cuda/cuda.h"
#include "base/cpu.h"

#ifdef PLP_EMU
#include "backend/emu/emu.h"
#endif
#ifdef PLP_METAL
#include "backend/metal/metal.h"
#endif

#include <stdio.h>
#include <string.h>

static plp_status open_cpu(plp_backend **out, uint32_t n_threads, plp_error *err) { return plp_cpu_backend_open(out, n_threads, err); }

static plp_status open_emu(plp_backend **out, uint32_t n_threads, plp_error *err)
{
#ifdef PLP_EMU
    return plp_emu_backend_open(out, err);
#else
    return plp_fail(err, PLP_E_UNSUPPORTED, "device \"emu\" was left out of this build (PLP_EMU=OFF)");
#endif
}

static plp_status open_cuda(plp_backend **out, uint32_t n_threads, plp_error *err) { return plp_cuda_backend_open(out, err); }

static plp_status open_metal(plp_backend **out, uint32_t n_threads, plp_error *err)
{
#ifdef PLP_METAL
    return plp_metal_backend_open(out, err);
#else
    return plp_fail(err, PLP_E_UNSUPPORTED, "device \"metal\" is for Apple systems");
#endif
}

static bool describe_cpu(char *out, size_t n_bytes)
{
    plp_cpu_describe(plp_cpu_features(), out, n_bytes);
    return true;
}

static bool describe_emu(char *out, size_t n_bytes)
{
#ifdef PLP_EMU
    snprintf(out, n_bytes, "the GPU kernels on the CPU: slow, for tests");
    return true;
#else
    snprintf(out, n_bytes, "left out of this build");
    return false;
#endif
}

static bool describe_metal(char *out, size_t n_bytes)
{
#ifdef PLP_METAL
    return plp_metal_describe(out, n_bytes);
#else
    snprintf(out, n_bytes, "for Apple systems");
    return false;
#endif
}

static const struct device {
    const char *name;
    plp_status (*open)(plp_backend **out, uint32_t n_threads, plp_error *err);
    bool       (*describe)(char *out, size_t n_bytes);      /* true: it is there */
} devices[] = {
    { "cpu",   open_cpu,   describe_cpu },
    { "cuda",  open_cuda,  plp_cuda_describe },
    { "metal", open_metal, describe_metal },
    { "emu",   open_emu,   describe_emu },
};
enum { N_DEVICES = sizeof devices / sizeof *devices };

plp_status plp_backend_open(plp_backend **out, const char *device, uint32_t n_threads, plp_error *err)
{
    if (!strcmp(device, "auto"))
        device = "cpu";
    for (uint32_t i = 0; i < N_DEVICES; i++)
        if (!strcmp(devices[i].name, device))
            return devices[i].open(out, n_threads, err);
    return plp_fail(err, PLP_E_ARG, "device \"%.40s\" is not known; auto, cpu, cuda, metal and emu are", device);
}

plp_status plp_device_info(uint32_t i, plp_device *out, plp_error *err)
{
    if (i >= N_DEVICES)
        return plp_fail(err, PLP_E_ARG, "device %u; there are %d", i, N_DEVICES);
    *out = (plp_device){ 0 };
    snprintf(out->name, sizeof out->name, "%s", devices[i].name);
    out->is_there = devices[i].describe(out->what, sizeof out->what);
    return PLP_OK;
}
