"""
The memory protocol: `pyllama-paged bench memory`.

    lengths, buddy, simulate   serving simulated: what the paper's baselines waste
"""
