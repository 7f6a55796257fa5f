/*
 * base/cores.c - how many threads are worth having, and why
 *
 * The smallest of: CPUs in the affinity mask, the cgroup's quota (rounded down, at least 1), and, where
 * cores differ in strength, the strong ones: Linux cpu_capacity (ARM) or the share of the maximal
 * frequency, macOS perflevel0. A slow core in the team would hold up every barrier.
 */
#include "base/platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#if defined __linux__
#include <sched.h>
#elif defined __APPLE__
#include <sys/sysctl.h>
#endif

#if defined __linux__

static bool read_line(const char *path, char *text, size_t n)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const bool ok = fgets(text, (int)n, f) != NULL;
    fclose(f);
    return ok;
}

static long number_of_cpu(const char *format, int cpu)
{
    char path[128], text[64];
    snprintf(path, sizeof path, format, cpu);
    return read_line(path, text, sizeof text) ? atol(text) : 0;
}

static long strength(int cpu)
{
    const long capacity = number_of_cpu("/sys/devices/system/cpu/cpu%d/cpu_capacity", cpu);
    return capacity ? capacity : number_of_cpu("/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
}

/* SMT siblings share the units that the kernels keep busy: one thread a core. */
static bool first_of_core(int cpu, const cpu_set_t *mask)
{
    char path[128], text[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_line(path, text, sizeof text))
        return true;
    for (char *p = text; *p; ) {                        /* "0,4" or "0-1" */
        char *end;
        const long first = strtol(p, &end, 10);
        if (end == p)
            break;
        const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        for (long c = first; c <= last && c < cpu; c++)
            if (c >= 0 && c < CPU_SETSIZE && CPU_ISSET((int)c, mask))
                return false;
        p = *end == ',' ? end + 1 : end;
    }
    return true;
}

static double quota(void)                               /* CPUs; 0: none */
{
    char text[64];
    double limit, period;
    if (read_line("/sys/fs/cgroup/cpu.max", text, sizeof text) && sscanf(text, "%lf %lf", &limit, &period) == 2)
        return limit / period;
    if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text) && (limit = atof(text)) > 0 &&
        read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", text, sizeof text) && (period = atof(text)) > 0)
        return limit / period;
    return 0;
}

uint32_t plp_cpu_count(char *reason, size_t reason_bytes)
{
    cpu_set_t mask;
    uint32_t allowed = 0, cores = 0, strong = 0;
    long best = 0;

    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof mask, &mask)) {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        snprintf(reason, reason_bytes, "%ld CPUs online (no affinity information)", online);
        return online > 0 ? (uint32_t)online : 1;
    }
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &mask)) {
            const long s = strength(c);
            if (s > best)
                best = s;
        }
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &mask)) {
            allowed++;
            if (!first_of_core(c, &mask))
                continue;
            cores++;
            /* Boost bins differ by a few per cent between equal cores; little cores by a third or more. */
            strong += strength(c) * 10 >= best * 7;
        }
    uint32_t n = strong ? strong : cores ? cores : 1;
    const double q = quota();
    if (q > 0 && q < n) {
        n = q < 1 ? 1 : (uint32_t)q;
        snprintf(reason, reason_bytes, "CPU quota of %.2f (cgroup); %u CPUs allowed by affinity", q, allowed);
    } else if (strong && strong < cores) {
        snprintf(reason, reason_bytes, "%u performance cores of %u cores (%u CPUs allowed)", strong, cores, allowed);
    } else if (cores < allowed) {
        snprintf(reason, reason_bytes, "%u physical cores (%u hardware threads allowed)", cores, allowed);
    } else {
        snprintf(reason, reason_bytes, "%u CPUs allowed by affinity", allowed);
    }
    return n;
}

#else

uint32_t plp_cpu_count(char *reason, size_t reason_bytes)
{
#if defined __APPLE__
    int32_t n = 0;
    size_t bytes = sizeof n;
    if (!sysctlbyname("hw.perflevel0.physicalcpu", &n, &bytes, NULL, 0) && n > 0) {
        snprintf(reason, reason_bytes, "%d performance cores", n);
        return (uint32_t)n;
    }
#endif
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(reason, reason_bytes, "%ld CPUs online", online);
    return online > 0 ? (uint32_t)online : 1;
}

#endif
