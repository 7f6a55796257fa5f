"""
The memory protocol: `pyllama-paged bench memory`.

    process, identity, energy      what a process holds, what ran it, joules
    loop, worker, worker_llama     the processes that scenarios work in: this runtime, llama.cpp
    lab                            starts them, watches them, merges repetitions into rows
    scenarios, churn, price        what is done
    lengths, buddy, simulate       serving simulated: what the paper's baselines waste
    run                            all of it into one record
    verdicts                       which gains travelled, from the numbers
    tables, summary, page, compare for people
"""
