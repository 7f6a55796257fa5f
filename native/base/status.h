/*
 * base/status.h - one way to say what went wrong
 *
 * A fallible function returns plp_status and takes `plp_error *err` last; err may be NULL. The
 * message is one sentence: what, where, what to do. plp_fail returns its code, so that failing is
 * `return plp_fail(err, PLP_E_FILE, "...")`.
 */
#ifndef PLP_BASE_STATUS_H
#define PLP_BASE_STATUS_H

#include "plp.h"

plp_status plp_fail(plp_error *err, plp_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As plp_fail, with the amounts that a caller may want to act on. */
plp_status plp_fail_amount(plp_error *err, plp_status code, uint64_t wanted, uint64_t available,
                           const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
