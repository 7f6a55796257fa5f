"""The command `pyllama-paged`."""
