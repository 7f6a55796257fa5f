/*
 * backend/metal/metal.h - Apple GPUs: a device for the GPU backend, in C over the Objective-C runtime
 *
 * Everything of Apple's is looked up by dlopen, so it compiles without an SDK, links everywhere, and a
 * machine without Metal says so. Metal 3 is needed (macOS 13, any Apple silicon): kernels take device
 * addresses in structures.
 */
#ifndef PLP_BACKEND_METAL_METAL_H
#define PLP_BACKEND_METAL_METAL_H

#include "backend/backend.h"

/* PLP_E_UNSUPPORTED with the reason: no Metal, no device, an old one. */
plp_status plp_metal_backend_open(plp_backend **out, plp_error *err);
/* The device in words, or why there is none. */
bool       plp_metal_describe(char *out, size_t n_bytes);

/* Where the libraries lie; tests set NULL (this program) and bring a runtime of their own. */
extern const char *plp_metal_objc_path, *plp_metal_framework_path;

#endif
