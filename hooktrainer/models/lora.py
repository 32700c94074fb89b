"""Low-rank adapters (LoRA, 2106.09685) on the linear layers of a policy.

Adapters are merged into their base before they are published. `merged_state` returns the merged weights under the names
of the plain model, and engines hold the plain model (`without_adapters`). An adapter can be neither applied twice nor
missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hooktrainer.errors import did_you_mean
from hooktrainer.models.policy import full_state


class LoraLinear(nn.Module):
    """Linear layer with frozen weights W and a trained low-rank update: (W + alpha / rank · B A) x + bias.

    The update is at least in float32, since small changes of a matrix in half precision are lost.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight = base.weight
        self.bias = base.bias
        dtype = torch.promote_types(base.weight.dtype, torch.float32)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, dtype=dtype))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, dtype=dtype))
        self.alpha, self.scale = alpha, alpha / rank

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer. Shape (..., in_features) -> (..., out_features)."""
        output = functional.linear(inputs, self.weight, self.bias)
        update = functional.linear(functional.linear(inputs.to(self.lora_a.dtype), self.lora_a), self.lora_b)
        return output + (self.scale * update).to(output.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return W + alpha / rank · B A in new memory."""
        weight = self.weight.to(self.lora_b.dtype)
        return torch.addmm(weight, self.lora_b, self.lora_a, alpha=self.scale).to(self.weight.dtype)


def add_lora(policy: nn.Module, *, targets: Sequence[str], rank: int, alpha: float, seed: int = 0) -> None:
    """Freeze a policy, and add an adapter, initially zero, to every linear layer that a target names.

    A target is the last part of a layer's name (`qkv`) or the whole name (`layers.0.qkv`). Call this once, in a model's
    `build`. Raises `ValueError` if a target matches no linear layer or another kind of layer, such as `Conv1D` of
    transformers, or if the weights of a layer are tied to others.
    """
    if any(isinstance(module, LoraLinear) for module in policy.modules()):
        raise ValueError("this policy has adapters already; a second `add_lora` would apply two")
    linear = {name: module for name, module in policy.named_modules() if isinstance(module, nn.Linear)}
    matched = {name: module for name, module in linear.items() if {name, name.rpartition(".")[2]} & set(targets)}
    _check_kinds(policy, targets)
    _check_targets(targets, linear, matched)
    _check_untied(policy, matched)
    policy.requires_grad_(requires_grad=False)
    generator = torch.Generator().manual_seed(seed)
    for name, module in matched.items():
        adapter = LoraLinear(module, rank, alpha).to(module.weight.device)
        nn.init.normal_(adapter.lora_a, std=module.in_features**-0.5, generator=generator)
        _replace(policy, name, adapter)


def all_linear(policy: nn.Module, *, without: nn.Module | None) -> list[str]:
    """Return the names of all linear layers but one, usually the output head."""
    return [name for name, one in policy.named_modules() if isinstance(one, nn.Linear) and one is not without]


def without_adapters(policy: nn.Module) -> nn.Module:
    """Replace every adapted layer by a linear layer with merged weights, in place; return the policy."""
    for name, module in list(policy.named_modules()):
        if isinstance(module, LoraLinear):
            plain = nn.Linear(module.lora_a.shape[1], module.lora_b.shape[0], device="meta")  # draws no random numbers
            plain.weight, plain.bias = nn.Parameter(module.merged()), module.bias
            _replace(policy, name, plain)
    return policy


def merged_state(policy: nn.Module) -> Mapping[str, Tensor]:
    """Return the state of the plain model, as `full_state` does; with adapters, as a `hooktrainer.ports.WeightSource`.

    Merged weights are computed at each access, one tensor at a time.
    """
    adapters = dict(adapters_of(policy))
    return MergedWeights(full_state(policy), adapters) if adapters else full_state(policy)


class MergedWeights(Mapping[str, Tensor]):
    """Weights of the plain model; those of adapted layers are merged when they are read."""

    def __init__(self, state: Mapping[str, Tensor], adapters: Mapping[str, LoraLinear]) -> None:
        own = {f"{name}.{part}" for name in adapters for part in ("lora_a", "lora_b")}
        self._plain = {name: tensor for name, tensor in state.items() if name not in own}
        self._adapters = {f"{name}.weight": adapter for name, adapter in adapters.items()}

    def spec(self) -> Mapping[str, Tensor]:
        """Return the stored tensors, and ones on the device `meta` for those that are merged."""
        merged = {name: adapter.weight.detach().to("meta") for name, adapter in self._adapters.items()}
        return self._plain | merged

    def __getitem__(self, name: str) -> Tensor:
        return self._adapters[name].merged() if name in self._adapters else self._plain[name]

    def __contains__(self, name: object) -> bool:
        return name in self._plain

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)


def adapters_of(policy: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """Yield the adapted layers by name."""
    return ((name, module) for name, module in policy.named_modules() if isinstance(module, LoraLinear))


def _check_kinds(policy: nn.Module, targets: Sequence[str]) -> None:
    for name, module in policy.named_modules():
        has_weight = "weight" in module._parameters and not isinstance(module, nn.Linear)
        if has_weight and {name, name.rpartition(".")[2]} & set(targets):
            kind = type(module).__name__
            raise ValueError(f"'{name}' is of type {kind}; adapters are for linear layers (nn.Linear) only")


def _check_targets(targets: Sequence[str], linear: Mapping[str, object], matched: Mapping[str, object]) -> None:
    if isinstance(targets, str):
        raise TypeError(f"targets must be a sequence of names, found {targets!r}; write ({targets!r},)")
    ends = {name.rpartition(".")[2] for name in linear}
    if not matched:
        hints = "".join(did_you_mean(target, ends) for target in targets)
        raise ValueError(
            f"adapter matched 0 of {len(linear)} linear layers: targets are {list(targets)}, layers end in "
            f"{sorted(ends)}.{hints}"
        )
    for target in targets:
        if target not in ends and target not in linear:
            raise ValueError(
                f"adapter target '{target}' matched 0 of {len(linear)} linear layers.{did_you_mean(target, ends)}"
            )


def _check_untied(policy: nn.Module, matched: Mapping[str, nn.Linear]) -> None:
    names: dict[int, list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for name, module in matched.items():
        if len(tied := names[id(module.weight)]) > 1:
            raise ValueError(f"'{name}' cannot have an adapter: its weights are tied, {' = '.join(tied)}")


def _replace(policy: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(policy.get_submodule(parent), last, module.train(policy.training))
