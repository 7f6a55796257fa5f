/*
 * backend/devices.h - which backend a device's name means, and what there is on this machine
 */
#ifndef PLP_BACKEND_DEVICES_H
#define PLP_BACKEND_DEVICES_H

#include "backend/backend.h"

/* "auto", "cpu", "cuda", "metal", "emu". A device that is not there is PLP_E_UNSUPPORTED, with the reason. */
plp_status plp_backend_open(plp_backend **out, const char *device, uint32_t n_threads, plp_error *err);

#endif
