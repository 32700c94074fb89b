"""Errors of inference servers, each with what to do about it."""

from __future__ import annotations

import json
from typing import Any, Final

from hooktrainer.errors import RolloutError, shortened

_LONGEST: Final = 300
"""Characters of a server's own message in an error."""
CONTROL_ROUTES: Final = frozenset(
    (
        "/pause",
        "/resume",
        "/collective_rpc",
        "/update_weight_version",
        "/weight_info",
        "/reset_prefix_cache",
    )
)
"""Routes that vLLM has in its development mode only."""


class ServerError(RolloutError):
    """A server cannot be used as it is set up, so the run cannot continue."""


class ServerFailureError(RolloutError):
    """A server failed to answer a request, which may succeed if it is repeated."""

    retry_after_s: float | None = None
    """Seconds that the server asks to wait, if it does."""
    busy = False
    """Whether the server only has too many requests."""


class ServerGoneError(ServerFailureError):
    """A server cannot be reached any more."""


def error_of_status(url: str, path: str, status: int, text: str, *, key_variable: str, has_key: bool) -> RolloutError:
    """Return the error for an HTTP status of at least 400."""
    said = f" It replied: {shortened(_message_of(text), _LONGEST)}" if text.strip() else ""
    where = f"the server {url} replied with status {status} to {path}"
    if status in {401, 403}:
        found = f"the API key in the environment variable {key_variable}" if has_key else "a request without an API key"
        return ServerError(f"{where}: it refuses {found}. Set {key_variable} to the key of the server.{said}")
    if status in {404, 405} and path in CONTROL_ROUTES:
        return ServerError(
            f"{where}: it has no such route. Start vLLM with the environment variable VLLM_SERVER_DEV_MODE=1, which "
            "adds the routes of a weight sync. Let no one else reach such a server"
        )
    if status == 404:
        return ServerError(f"{where}: it has no such route or model. rollout.urls must name servers of vLLM.{said}")
    if status == 429 or status >= 500:
        failure = ServerFailureError(
            f"{where}, also when the request was repeated. "
            + ("It has too many requests: lower rollout.slots." if status == 429 else "See the log of the server.")
            + said
        )
        failure.busy = status == 429
        return failure
    return ServerError(f"{where}: it refuses the request.{said}")


def _message_of(text: str) -> str:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    return found if isinstance(found, str) else json.dumps(found)
