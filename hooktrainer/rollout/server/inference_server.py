"""One server of vLLM: its checks, its weights, and the tokens that it samples."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

import numpy as np

from hooktrainer.errors import did_you_mean
from hooktrainer.ports import Floats, Tokens
from hooktrainer.rollout.server.connection import Connection
from hooktrainer.rollout.server.errors import ServerError, ServerFailureError
from hooktrainer.rollout.server.options import ServingOptions

COMPLETIONS: Final = "/v1/completions"
_CHECK_TEMPERATURE: Final = 0.7
_CHECK_PROMPTS: Final = ((0, 1, 1, 0), (1, 0), (0,))
"""Every vocabulary has these tokens."""
_CHECK_BIASES: Final = (0.0, -10.0, -30.0, -90.0)
_LARGEST_ODDS: Final = 9.0
"""Log-odds up to which a log-probability in float32 is exact enough."""
_CHECK_SHIFT: Final = 2.0
_CHECK_ATOL: Final = 0.05
_CACHE_S: Final = 10.0
"""Seconds for which the reset of a prefix cache is repeated."""
_UNCHANGED: Final = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Options with which tokens are sampled from the model's own distribution, with any defaults of the server."""


class Answered:
    """Tokens with their log-probabilities, which are added to lists as they arrive."""

    def __init__(self, tokens: list[int] | None = None, logprobs: list[float] | None = None) -> None:
        self.tokens: Final = [] if tokens is None else tokens
        self.logprobs: Final = [] if logprobs is None else logprobs
        self.added = 0
        """Number of tokens that were added."""

    def add(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append tokens."""
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        self.added += len(tokens)


class InferenceServer:
    """Asks one server. Use it in one event loop."""

    def __init__(self, url: str, options: ServingOptions, *, eos_ids: frozenset[int], max_length: int) -> None:
        self.connection: Final = Connection(url, options)
        self.url: Final = url
        self.groups: Final[set[int]] = set()
        """Numbers of the groups that it answers."""
        self.live = False
        """Whether it has the weights in use, and can be reached."""
        self._options = options
        self._eos_ids = eos_ids
        self._max_length = max_length
        self._model = ""
        self._checked = False

    def __str__(self) -> str:
        return f"server {self.url}"

    def drop(self) -> None:
        """Use the server no longer, until it has loaded weights again."""
        self.live = self._checked = False

    async def load(self, folder: Path, label: str) -> None:
        """Load the weights of a folder, and resume; the label, which names this version, is written and read back."""
        if not self._checked:
            await self._check_model()
        post, limit = self.connection.post, self._options.sync_timeout_s
        mode = "keep" if self._options.on_sync == "continue" else "wait"
        await post("/pause", params={"mode": mode}, timeout_s=limit)
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await post("/collective_rpc", call, timeout_s=limit)
        await post("/update_weight_version", {"new_version": label})
        found = (await self.connection.get("/weight_info")).get("weight_version")
        if found != label:
            raise ServerError(f"the {self} has the weights {found!r} instead of {label!r}. Does another run use it?")
        await self._reset_cache()
        await self.resume()
        if not self._checked:
            await self._check_logprobs()
        self._checked = True

    async def resume(self) -> None:
        """Let the server answer requests."""
        await self.connection.post("/resume")

    async def sample(self, prompt: Sequence[int], length: int, seed: int | None, into: Answered) -> None:
        """Sample at most `length` tokens, greedily without a seed. Tokens are added to `into` as they arrive."""
        body = self._request(prompt, length, self._options.temperature if seed is not None else 0.0)
        body |= {"stream": True, "logprobs": 0, "ignore_eos": True, "stop_token_ids": sorted(self._eos_ids)}
        body |= {} if seed is None else {"seed": seed}
        finished = None
        async for event in self.connection.events(COMPLETIONS, body):
            for choice in event.get("choices", ()):
                into.add(*self._sampled(choice))
                finished = choice.get("finish_reason") or finished
        self._check_end(finished, into, length)

    async def logprobs(self, tokens: Tokens) -> Floats:
        """Return the log-probability of each token given the tokens before it, at the sampling temperature."""
        values = [
            self._logprob(tokens[:count].tolist(), int(tokens[count]), self._options.temperature)
            for count in range(1, len(tokens))
        ]
        return np.array(await asyncio.gather(*values), dtype=np.float32)

    async def _logprob(self, prompt: Sequence[int], token: int, temperature: float, bias: float = 0.0) -> float:
        body = self._request(prompt, 1, temperature) | {"logprobs": 1, "logprob_token_ids": [token], "seed": 0}
        body |= {"return_tokens_as_token_ids": True, "ignore_eos": True}
        body |= {"logit_bias": {str(token): bias}} if bias else {}
        reply = await self.connection.post(COMPLETIONS, body)
        found = (self._first(reply).get("logprobs") or {}).get("top_logprobs") or [{}]
        value = (found[0] or {}).get(f"token_id:{token}")
        if value is None:
            raise ServerError(
                f"the {self} returned no log-probability of token {token} although it was asked for "
                "(`logprob_token_ids`). Use vLLM 0.32 or newer"
            )
        return float(value)

    def _request(self, prompt: Sequence[int], length: int, temperature: float) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": length,
            "temperature": temperature,
            "return_token_ids": True,
            "skip_special_tokens": False,
            **_UNCHANGED,
        }

    def _first(self, reply: Any) -> Mapping[str, Any]:
        choices = reply.get("choices") if reply else None
        if not choices:
            raise ServerError(f"the {self} replied without `choices`. rollout.urls must name servers of vLLM")
        first: Mapping[str, Any] = choices[0]
        return first

    def _sampled(self, choice: Mapping[str, Any]) -> tuple[list[int], list[float]]:
        tokens = choice.get("token_ids")
        if tokens is None:
            if choice.get("text"):
                raise ServerError(
                    f"the {self} returned text without token ids (`return_token_ids`). Use vLLM 0.32 or newer: ids "
                    "from text could differ from those that were sampled"
                )
            return [], []
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        if len(logprobs) != len(tokens) or any(value is None for value in logprobs):
            raise ServerError(
                f"the {self} returned {len(tokens)} tokens with {sum(value is not None for value in logprobs)} "
                "log-probabilities, expected one for each. Is `--max-logprobs` below 1, or a proxy in between?"
            )
        return list(tokens), [float(value) for value in logprobs]

    def _check_end(self, reason: str | None, into: Answered, length: int) -> None:
        if reason == "stop":
            if not into.tokens or into.tokens[-1] not in self._eos_ids:
                raise ServerError(
                    f"the {self} ended an answer before an end token of the model. It has stop tokens of its own: "
                    "start it with --generation-config vllm"
                )
        elif reason == "length":
            if into.added != length:
                raise ServerError(
                    f"the {self} ended an answer after {into.added} of {length} tokens. Start it with --max-model-len "
                    f"{self._max_length} or more"
                )
        else:  # such as `abort`, when another client pauses the server without `mode`
            raise ServerFailureError(f"the {self} truncated an answer (finish_reason {reason!r}), also when repeated")

    async def _check_model(self) -> None:
        """Raise `ServerError` unless the server has the model, enough length for it, and the routes of a sync."""
        cards = {card["id"]: card for card in (await self.connection.get("/v1/models")).get("data", ())}
        wanted = self._options.model or (next(iter(cards)) if len(cards) == 1 else "")
        if wanted not in cards:
            served = ", ".join(map(repr, cards)) or "none"
            expected = f"expected {wanted!r}, as rollout.model names it.{did_you_mean(wanted, cards)}"
            hint = expected if wanted else "set rollout.model"
            raise ServerError(f"the {self} serves the models {served}; {hint}")
        longest = cards[wanted].get("max_model_len")
        if longest is not None and longest < self._max_length:
            raise ServerError(
                f"the {self} takes {longest} tokens of a prompt and its answer, the run needs {self._max_length}. "
                f"Start it with --max-model-len {self._max_length} or more"
            )
        self._model = wanted
        await self.connection.get("/weight_info")

    async def _check_logprobs(self) -> None:
        """Raise `ServerError` unless log-probabilities are those of the distribution that is sampled from.

        A bias moves the logit of a sampled token, and the temperature scales it. Both must show in the log-probability.
        If one token has all of the probability despite a bias, log-probabilities of all kinds are equal.
        """
        for bias, prompt in itertools.product(_CHECK_BIASES, _CHECK_PROMPTS):
            body = self._request(prompt, 1, _CHECK_TEMPERATURE) | {"logprobs": 0, "seed": 0, "ignore_eos": True}
            ((token,), _) = self._sampled(self._first(await self.connection.post(COMPLETIONS, body)))
            odds = _log_odds(await self._logprob(prompt, token, _CHECK_TEMPERATURE, bias))
            if odds < _LARGEST_ODDS:
                break
        else:
            return
        shift = -_CHECK_SHIFT if odds >= 0 else _CHECK_SHIFT
        moved = bias + shift * _CHECK_TEMPERATURE
        found = _log_odds(await self._logprob(prompt, token, _CHECK_TEMPERATURE, moved)) - odds
        if not abs(found - shift) <= _CHECK_ATOL:
            raise ServerError(
                f"the {self} returns log-probabilities of another distribution than it samples from: at temperature "
                f"{_CHECK_TEMPERATURE:g}, a bias of {shift * _CHECK_TEMPERATURE:.4g} moved the log-odds of token "
                f"{token} by {found:.4g}, expected {shift:.4g}. Start it with --logprobs-mode processed_logprobs"
            )

    async def _reset_cache(self) -> None:
        """Clear keys and values of other weights. Requests of other clients are prefilled again."""
        deadline = monotonic() + _CACHE_S
        while True:
            reply = await self.connection.post("/reset_prefix_cache", params={"reset_running_requests": "true"})
            if reply is None or reply.get("success", True):
                return
            if monotonic() > deadline:
                raise ServerError(
                    f"the {self} does not clear its prefix cache, which has keys of old weights. Start it with "
                    "--no-enable-prefix-caching, or let no other client use it"
                )
            await asyncio.sleep(0.1)


def _log_odds(logprob: float) -> float:
    return logprob - math.log(max(-math.expm1(logprob), 1e-12))
