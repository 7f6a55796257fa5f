/* text/unicode.c - the tables that gen_unicode.py wrote at build time. */
#include "text/unicode.h"

#include "unicode_tables.h"
