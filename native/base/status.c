/* base/status.c - fills plp_error; names of the codes; the library's version. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message cut to its room must not end inside a UTF-8 character. */
static void cut_character(char *msg)
{
    size_t n = strlen(msg), back = 0;
    while (back < 3 && back < n && ((unsigned char)msg[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back < n && (unsigned char)msg[n - 1 - back] >= 0xc0)
        msg[n - 1 - back] = 0;
}

static plp_status fail(plp_error *err, plp_status code, uint64_t wanted, uint64_t available,
                       const char *format, va_list args)
{
    if (err) {
        err->status = code;
        err->wanted = wanted;
        err->available = available;
        const int n = vsnprintf(err->msg, sizeof err->msg, format, args);
        if (n >= (int)sizeof err->msg)
            cut_character(err->msg);
    }
    return code;
}

plp_status plp_fail(plp_error *err, plp_status code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail(err, code, 0, 0, format, args);
    va_end(args);
    return code;
}

plp_status plp_fail_amount(plp_error *err, plp_status code, uint64_t wanted, uint64_t available,
                           const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fail(err, code, wanted, available, format, args);
    va_end(args);
    return code;
}

const char *plp_version(void) { return PLP_VERSION; }

const char *plp_status_name(int32_t status)
{
    switch (status) {
    case PLP_OK:            return "ok";
    case PLP_E_ARG:         return "bad argument";
    case PLP_E_NOMEM:       return "out of memory";
    case PLP_E_IO:          return "input/output error";
    case PLP_E_FILE:        return "bad file";
    case PLP_E_UNSUPPORTED: return "unsupported";
    case PLP_E_BUDGET:      return "KV budget exceeded";
    case PLP_E_CONTEXT:     return "context full";
    case PLP_E_BUSY:        return "busy";
    case PLP_E_CANCELLED:   return "cancelled";
    case PLP_E_NUMERIC:     return "not a number";
    case PLP_E_CLOSED:      return "closed";
    }
    return "unknown status";
}
