"""The port `ModelExport` of a run: writes the weights that its engine samples from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from safetensors import SafetensorError

from hooktrainer._util.folders import replace_folder
from hooktrainer.errors import ConfigError, Fault, HungError, RunError, line_of
from hooktrainer.ports import HasModule, RolloutEngine, Tokenizer

if TYPE_CHECKING:
    from torch import nn

    from hooktrainer.models.adapter_files import AdapterFiles
    from hooktrainer.run.composition import Composition


@attrs.define
class EngineExport:
    """Writes the published weights, which are those of the last complete step until the next weight sync."""

    composition: Composition
    tokenizer: Tokenizer
    engine: RolloutEngine
    policy: nn.Module
    """The policy that is trained, with its adapters."""
    _adapters: AdapterFiles | None = attrs.field(default=None, init=False, repr=False)
    """Those of the published weights, which have them merged."""

    @property
    def version(self) -> int:
        """The step whose weights are published, -1 before the first."""
        return self.engine.version

    def check(self) -> None:
        """Raise `ConfigError` if the model has no `save`, or the engine has no module in this process."""
        remedy = "or remove `export` from the plugins"
        if not callable(getattr(self._model, "save", None)):
            text = f"{type(self._model).__name__} has no `save(module, tokenizer, folder)`, which the plugin `export`"
            raise ConfigError(
                [Fault("model", f"{text} calls. Write this method (hooktrainer/models/README.md), {remedy}")]
            )
        if not isinstance(self.engine, HasModule):
            text = f"{type(self.engine).__name__} has no `module`, whose weights the plugin `export` saves. Add it"
            raise ConfigError([Fault("rollout", f"{text} (hooktrainer.ports.HasModule), {remedy}")])

    def keep_adapters(self) -> None:
        """Copy the adapters of the policy, whose weights were just published."""
        from hooktrainer.models.adapter_files import copied_adapters

        self._adapters = copied_adapters(self.policy)

    def export(self, folder: Path) -> None:
        """Write the folder, or replace it. Raises `RunError` if it cannot be written; it is unchanged then."""
        self.check()
        try:
            replace_folder(folder, self._save)
        except HungError:
            raise
        except Exception as error:  # noqa: BLE001 (code of a user)
            text = f"the model cannot be exported to {folder}: {line_of(error)}. An earlier export is unchanged"
            # safetensors wraps errors of the system.
            raise RunError(text) from (None if isinstance(error, OSError | SafetensorError) else error)

    def _save(self, folder: Path) -> None:
        assert isinstance(self.engine, HasModule)
        self._model.save(self.engine.module, self.tokenizer, folder)
        if self._adapters is not None:
            self._adapters.write(folder / "adapter")

    @property
    def _model(self) -> Any:
        return self.composition.model
