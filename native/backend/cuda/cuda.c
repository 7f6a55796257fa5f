/* backend/cuda/cuda.c - find and load libplp_cuda.so, once */
#include "backend/cuda/cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void beside_this_code(char *out, size_t n_bytes)
{
    Dl_info info;
    const char *slash;

    out[0] = 0;
    if (dladdr((void *)plp_cuda_describe, &info) && info.dli_fname && (slash = strrchr(info.dli_fname, '/')))
        snprintf(out, n_bytes, "%.*s/libplp_cuda.so", (int)(slash - info.dli_fname), info.dli_fname);
    else
        snprintf(out, n_bytes, "libplp_cuda.so");
}

/* Stays loaded: a CUDA runtime does not come back from dlclose. dlopen itself counts and locks. */
static const plp_cuda_library *load(char *why, size_t n_bytes)
{
    const char *named = getenv("PLP_CUDA_LIBRARY");
    char path[1024];

    if (named && *named)
        snprintf(path, sizeof path, "%s", named);
    else
        beside_this_code(path, sizeof path);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(why, n_bytes, "the CUDA part is not installed (%s)", dlerror());
        return NULL;
    }
    const plp_cuda_entry entry = (plp_cuda_entry)dlsym(handle, PLP_CUDA_ENTRY);
    const plp_cuda_library *library = entry ? entry() : NULL;
    if (!library || library->interface != PLP_CUDA_INTERFACE) {
        snprintf(why, n_bytes, "%s belongs to another version", path);
        return NULL;
    }
    return library;
}

plp_status plp_cuda_backend_open(plp_backend **out, plp_error *err)
{
    plp_gpu_device *device;
    char why[300];
    const plp_cuda_library *library = load(why, sizeof why);

    if (!library)
        return plp_fail(err, PLP_E_UNSUPPORTED, "device \"cuda\": %s", why);
    const plp_status s = library->open(&device, err);
    return s < 0 ? s : plp_gpu_backend_open(out, device, err);
}

bool plp_cuda_describe(char *out, size_t n_bytes)
{
    const plp_cuda_library *library = load(out, n_bytes);
    return library && library->describe(out, n_bytes);
}
