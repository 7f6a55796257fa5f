/*
 * backend/gpu/kernels/attention_sizes.h - the kernels of one format F (attention.h)
 *
 * REGISTERS: what a thread may have. The least of the steps 128, 168, 255 (four, three, two groups of 128 threads
 * on a multiprocessor) with which ptxas spills nothing for any format and target: bench/results/cuda-ptxas.md.
 */
#define Q_N   1u
#define REGISTERS 128
#define D_MAX 64u
#define NAME  CAT(CAT(attention_, F), _64_1)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 128u
#define NAME  CAT(CAT(attention_, F), _128_1)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 256u
#define NAME  CAT(CAT(attention_, F), _256_1)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#undef Q_N
#define Q_N   4u
#undef REGISTERS
#define REGISTERS 168
#define D_MAX 64u
#define NAME  CAT(CAT(attention_, F), _64_4)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 128u
#define NAME  CAT(CAT(attention_, F), _128_4)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#undef REGISTERS
#define REGISTERS 255
#define D_MAX 256u
#define NAME  CAT(CAT(attention_, F), _256_4)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#undef Q_N
#undef REGISTERS
