/*
 * backend/cuda/cuda_device.c - the CUDA device: one stream, pinned staging, and a graph for a step that repeats
 *
 * A list that comes twice in a row (a decode step: same kernels, same addresses, only the staged contents
 * differ) is captured; from the third time on it is one launch.
 *
 * Part of libplp_cuda.so: nothing of libplp may be called here. The first GPU is used; CUDA_VISIBLE_DEVICES
 * chooses another.
 *
 * Threads  one caller at a time, any thread
 * Errors   the first failure of the runtime is kept and said by every wait
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_kernels.h"

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BOUNCE_BYTES = 1 << 20, LEAST_GRAPH = 16 };

typedef struct cuda {
    plp_gpu_device   base;
    cudaStream_t     stream;
    void            *stage_host, *stage;        /* pinned; its copy on the device */
    void            *bounce;                    /* pinned, for what the host reads */
    plp_gpu_command *last;                      /* the list that ran last */
    uint32_t         n_last, cap_last;
    cudaGraphExec_t  graph;                     /* of it, if it came twice */
    plp_error        failure;
} cuda;

__attribute__((format(printf, 3, 4)))
static plp_status fail(plp_error *err, plp_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        memset(err, 0, sizeof *err);
        err->status = status;
        va_start(args, format);
        vsnprintf(err->msg, sizeof err->msg, format, args);
        va_end(args);
    }
    return status;
}

/* True if all is well so far. */
static bool check(cuda *c, cudaError_t e, const char *what)
{
    if (e != cudaSuccess && c->failure.status >= 0)
        fail(&c->failure, e == cudaErrorMemoryAllocation ? PLP_E_NOMEM : PLP_E_UNSUPPORTED, "device \"cuda\": %s: %s", what, cudaGetErrorString(e));
    return c->failure.status >= 0;
}

/* ---- memory ---- */

static plp_status memory(plp_gpu_device *d, size_t n_bytes, void **out, plp_error *err)
{
    const cudaError_t e = cudaMalloc(out, n_bytes);
    if (e == cudaSuccess)
        return PLP_OK;
    cudaGetLastError();                         /* refused memory is no failure of the device */
    return fail(err, PLP_E_NOMEM, "device \"cuda\": %zu bytes refused: %s", n_bytes, cudaGetErrorString(e));
}

static void release(plp_gpu_device *d, void *p, size_t n_bytes) { cudaFree(p); }

static plp_status staging(plp_gpu_device *d, size_t n_bytes, void **host, void **address, plp_error *err)
{
    cuda *c = (cuda *)d;
    cudaStreamSynchronize(c->stream);
    cudaFreeHost(c->stage_host);
    cudaFree(c->stage);
    c->stage_host = c->stage = NULL;
    if (cudaHostAlloc(&c->stage_host, n_bytes, cudaHostAllocDefault) != cudaSuccess || cudaMalloc(&c->stage, n_bytes) != cudaSuccess) {
        cudaGetLastError();
        return fail(err, PLP_E_NOMEM, "device \"cuda\": %zu bytes of staging memory refused", n_bytes);
    }
    *host = c->stage_host;
    *address = c->stage;
    return PLP_OK;
}

static void *weights(plp_gpu_device *d, const void *host, size_t n_bytes) { return NULL; }

static void put(plp_gpu_device *d, void *address, const void *host, size_t n_bytes)
{
    check((cuda *)d, cudaMemcpy(address, host, n_bytes, cudaMemcpyHostToDevice), "copy to the GPU");
}

static void get(plp_gpu_device *d, void *host, const void *address, size_t n_bytes)
{
    cuda *c = (cuda *)d;
    for (size_t at = 0; at < n_bytes; at += BOUNCE_BYTES) {
        const size_t n = n_bytes - at < BOUNCE_BYTES ? n_bytes - at : BOUNCE_BYTES;
        check(c, cudaMemcpyAsync(c->bounce, (const char *)address + at, n, cudaMemcpyDeviceToHost, c->stream), "copy from the GPU");
        check(c, cudaStreamSynchronize(c->stream), "copy from the GPU");
        memcpy((char *)host + at, c->bounce, n);
    }
}

/* ---- lists ---- */

static void launch_all(cuda *c, const plp_gpu_command *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        void *args[] = { (void *)list[i].args };
        const dim3 groups = { list[i].groups[0], list[i].groups[1], 1 }, threads = { list[i].n_threads, 1, 1 };
        check(c, cudaLaunchKernel(plp_cuda_kernels[list[i].kernel], groups, threads, args, 0, c->stream), "launch");
    }
}

static void forget(cuda *c)
{
    if (c->graph)
        cudaGraphExecDestroy(c->graph);
    c->graph = NULL;
    c->n_last = 0;
}

/* Without memory for it the list is simply not remembered. */
static void remember(cuda *c, const plp_gpu_command *list, uint32_t n)
{
    forget(c);
    if (n > c->cap_last) {
        plp_gpu_command *more = realloc(c->last, n * sizeof *more);
        if (!more)
            return;
        c->last = more;
        c->cap_last = n;
    }
    memcpy(c->last, list, n * sizeof *list);
    c->n_last = n;
}

/* NULL graph: it could not be captured, and launching goes on without. */
static void capture(cuda *c, const plp_gpu_command *list, uint32_t n)
{
    cudaGraph_t graph = NULL;
    if (!check(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return;
    launch_all(c, list, n);
    if (check(c, cudaStreamEndCapture(c->stream, &graph), "capture"))
        check(c, cudaGraphInstantiate(&c->graph, graph, 0), "capture");
    if (graph)
        cudaGraphDestroy(graph);
}

static void run(plp_gpu_device *d, const plp_gpu_command *list, uint32_t n, size_t n_staged)
{
    cuda *c = (cuda *)d;

    if (c->failure.status < 0)
        return;
    if (n_staged)
        check(c, cudaMemcpyAsync(c->stage, c->stage_host, n_staged, cudaMemcpyHostToDevice, c->stream), "staging");
    if (n < LEAST_GRAPH || n != c->n_last || memcmp(list, c->last, n * sizeof *list)) {
        remember(c, list, n);
        launch_all(c, list, n);
        return;
    }
    if (!c->graph)
        capture(c, list, n);
    if (c->graph)
        check(c, cudaGraphLaunch(c->graph, c->stream), "launch");
    else
        launch_all(c, list, n);
}

static plp_status wait_done(plp_gpu_device *d, plp_error *err)
{
    cuda *c = (cuda *)d;
    check(c, cudaStreamSynchronize(c->stream), "wait");
    if (c->failure.status < 0 && err)
        *err = c->failure;
    return c->failure.status;
}

/* ---- open and close ---- */

static void cuda_close(plp_gpu_device *d)
{
    cuda *c = (cuda *)d;
    forget(c);
    if (c->stream) {
        cudaStreamSynchronize(c->stream);
        cudaStreamDestroy(c->stream);
    }
    cudaFreeHost(c->stage_host);
    cudaFree(c->stage);
    cudaFreeHost(c->bounce);
    free(c->last);
    free(c);
}

static const plp_gpu_driver driver = {
    .name = "cuda", .close = cuda_close, .memory = memory, .release = release, .staging = staging, .weights = weights,
    .run = run, .wait = wait_done, .write = put, .read = get,
};

/* Whatever cudaGetDeviceCount says other than success means that there is no GPU to be had. */
static bool find(char *why, size_t n_bytes)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess)
        snprintf(why, n_bytes, "no GPU: %s", cudaGetErrorString(e));
    else if (n == 0)
        snprintf(why, n_bytes, "no GPU: the driver lists none");
    return e == cudaSuccess && n > 0;
}

static bool describe(char *out, size_t n_bytes)
{
    struct cudaDeviceProp p;
    if (!find(out, n_bytes))
        return false;
    if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) {
        snprintf(out, n_bytes, "no GPU: the first one does not answer");
        return false;
    }
    snprintf(out, n_bytes, "%s, compute %d.%d, %.0f GiB", p.name, p.major, p.minor, (double)p.totalGlobalMem / (1 << 30));
    return true;
}

static plp_status cuda_open(plp_gpu_device **out, plp_error *err)
{
    char why[200];
    if (!find(why, sizeof why))
        return fail(err, PLP_E_UNSUPPORTED, "device \"cuda\": %s", why);
    cuda *c = calloc(1, sizeof *c);
    if (!c)
        return fail(err, PLP_E_NOMEM, "device \"cuda\": no memory");
    c->base.driver = &driver;
    check(c, cudaSetDevice(0), "open");
    check(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "open");
    check(c, cudaHostAlloc(&c->bounce, BOUNCE_BYTES, cudaHostAllocDefault), "open");
    if (c->failure.status < 0) {
        const plp_error failure = c->failure;
        cuda_close(&c->base);
        if (err)
            *err = failure;
        return failure.status;
    }
    *out = &c->base;
    return PLP_OK;
}

static const plp_cuda_library library = { PLP_CUDA_INTERFACE, cuda_open, describe };

__attribute__((visibility("default"))) const plp_cuda_library *plp_cuda_library_get(void);
const plp_cuda_library *plp_cuda_library_get(void) { return &library; }
