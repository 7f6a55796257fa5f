/* backend/gpu/kernels/all.h - the whole portable source; a prelude comes first */
#include "backend/gpu/kernels/dialect.h"
#include "backend/gpu/kernels/rows.h"
#include "backend/gpu/kernels/linear.h"
#include "backend/gpu/kernels/kv.h"
#include "backend/gpu/kernels/attention.h"
