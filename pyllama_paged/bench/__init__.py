"""
Measuring: `pyllama-paged bench speed | kernels | peers | memory`.

    stats       medians, spreads, ratios, verdicts: all arithmetic on samples
    machine     what ran it, and whether it was quiet meanwhile
    native      the program plp-bench: limits of the machine, single kernels
    record      a run's results in a file, row by row, so that a run can be taken up again
    work        one model under the clock: depth, prefill, decode, several sessions at once
    speed, kernels, peers   the three commands; tables makes them readable
    serve, peer_llama, peer_own   processes that do the same work by another runtime and by this one
    memory      the memory protocol, a package of its own

Nothing here is imported by the rest of the package.
"""
