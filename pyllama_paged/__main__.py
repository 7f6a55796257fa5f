"""
The command's process: `pyllama-paged`, and `python -m pyllama_paged` where its script is not on the path.

Ctrl-C ends it without a word, whenever it comes: also while modules are being imported, and when everything is done.
It ends by the signal itself (a shell says 130), so that a loop in a shell that runs the command ends, too.
"""

import os
import signal
import sys


def main() -> int:
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler      # else whoever started us wants it otherwise
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli.main import INTERRUPTED, main as command

    status = command(takes_interrupts=raises)
    if raises:
        signal.signal(signal.SIGINT, signal.SIG_DFL if status == INTERRUPTED else signal.SIG_IGN)
    if status == INTERRUPTED and os.name == "posix":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGINT)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
