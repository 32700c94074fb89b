"""An engine with one set of weights, whose calls can be made to fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hooktrainer.ports import Floats, Tokens
from hooktrainer.weight_sync.checksums import checksum


class OneSet:
    """Holds one set of weights, which `load` replaces; `fails` names calls that raise, with the version of `load`."""

    def __init__(self, *fails: object) -> None:
        self.version = -1
        self.known: dict[int, float] = {}
        self.used: float | None = None
        self.fails = list(fails)
        self.calls: list[object] = []
        self.stale: set[int] = set()
        """Versions that it confirms without using them."""

    def spec(self) -> None: ...

    def stage(self, weights: Mapping[str, Any], version: int) -> Mapping[str, int]:
        self.known[version] = weights["w"]
        return {"w": checksum(weights["w"])}

    def load(self, version: int) -> None:
        self._call(("load", version))
        self.version = version
        if version not in self.stale:
            self.used = self.known.get(version)

    def pause(self) -> None:
        self._call("pause")

    def resume(self) -> None:
        self._call("resume")

    def logprobs(self, tokens: Tokens) -> Floats:
        self._call("logprobs")
        return np.full(len(tokens) - 1, self.used, np.float32)

    def _call(self, call: object) -> None:
        self.calls.append(call)
        if call in self.fails:
            self.fails.remove(call)
            raise OSError(f"{call} failed")
