"""Settings of the whole suite."""

from __future__ import annotations

import os

# Small tensors gain nothing from threads and lose much when tests share the cores; before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
