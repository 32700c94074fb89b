"""Options of the engine that samples on inference servers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from attrs.validators import instance_of

from hooktrainer._util.durations import is_duration
from hooktrainer._util.registry import FILE
from hooktrainer.errors import ConfigError
from hooktrainer.rollout.options import SamplingOptions


def _urls(found: object) -> tuple[str, ...]:
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise ConfigError(f"expected a list of addresses such as [http://localhost:8000], found {found!r}")
    return tuple(str(url).rstrip("/").removesuffix("/v1") for url in found)


def _are_addresses(_options: object, _field: object, urls: tuple[str, ...]) -> None:
    if not urls:
        raise ConfigError("expected at least one address such as http://localhost:8000, found none")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{url!r} is no address of a server, expected one such as http://localhost:8000")
        if parts.username or parts.password or parts.query:
            where = f"{parts.scheme}://{parts.hostname}"
            raise ConfigError(f"the address of {where} contains a key; put it into the variable rollout.api_key_env")
    if repeated := sorted({url for url in urls if urls.count(url) > 1}):
        raise ConfigError(f"{repeated[0]!r} is listed twice")


@attrs.frozen(kw_only=True)
class ServingOptions(SamplingOptions):
    """How prompts are answered by inference servers."""

    urls: tuple[str, ...] = attrs.field(converter=_urls, validator=_are_addresses)
    """Addresses of the servers, such as `[http://localhost:8000]`. All serve the same model."""
    weights_dir: Path = attrs.field(converter=Path, metadata={FILE: True})
    """Directory for the weights of each version, which all servers read under the same path."""
    model: str = attrs.field(default="", validator=instance_of(str))
    """Name under which the servers serve the model (`--served-model-name`); may be left out if they serve one."""
    api_key_env: str = attrs.field(default="VLLM_API_KEY", validator=instance_of(str))
    """Environment variable with the API key. The key itself belongs in no file."""
    retry_s: float = attrs.field(default=5.0, converter=float, validator=is_duration)
    """Seconds for which a failed request is repeated. A server that cannot be reached for so long is dropped."""
    request_timeout_s: float = attrs.field(default=300.0, converter=float, validator=is_duration)
    """Seconds without a token after which a request has failed, and for which a server may have too many requests."""

    def __attrs_post_init__(self) -> None:
        """Raise `ConfigError` if httpx is not installed."""
        if importlib.util.find_spec("httpx") is None:
            raise ConfigError("the engine server needs httpx, which is missing: pip install 'hooktrainer[server]'")

    @property
    def max_groups(self) -> int:
        """Number of groups that one server answers at once."""
        return 1 if self.batching == "group" else -(-self.slots // self.n)
