"""Settings for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Small tensors gain nothing from threads, and lose much when tests share the loops. Must be set before importing torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Under `nohup`, or in the background of a script, these signals are ignored, also in processes that tests start.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# A deadline would measure the machine, not the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
