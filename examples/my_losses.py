"""Custom policy losses. YAML names them as `my_losses.py:sapo`; their parameters are filled by name.

Inputs: `logprobs` (current policy), `proximal` (start of the step), `behaviour` (the sampler) and `advantages`, all of
shape (B, T), and the bool `mask` (B, T). A keyword-only parameter with a default is an option. It is set by
`algorithm.policy_loss_args`, or by the key of `algorithm` with its name. Values where the mask is False may be
NaN: use `torch.where`, do not multiply by 0.

Each function returns a `TokenLoss`. Its `loss` has one value per token, (B, T), and is reduced by
`algorithm.loss_agg_mode`. Its `stats` are detached tensors (B, T), reported as token means, or {}.
"""

import torch
from torch import Tensor

from hooktrainer.algorithms.masking import lengths_of, log_ratio_of, ratio_of, selected
from hooktrainer.algorithms.policy_losses import TokenLoss, ppo_clip


def sapo(
    logprobs: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> TokenLoss:
    """Return -(4 / τ) sigmoid(τ (r - 1)) A: a smooth gate instead of a clip.

    τ is `tau_pos` where A > 0, else `tau_neg`. Use it with `seq-mean-token-mean`. Source: SAPO (2511.20347).
    """
    log_ratio, advantages = log_ratio_of(logprobs, proximal, mask), selected(advantages, mask)
    tau = torch.where(advantages > 0, advantages.new_tensor(tau_pos), advantages.new_tensor(tau_neg))
    gate = 4 / tau * torch.sigmoid(tau * (ratio_of(log_ratio) - 1))
    return TokenLoss(-gate * advantages, {"ppo_kl": -log_ratio.detach()})


def dppo_binary_tv(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tv_low: float = 0.2,
    tv_high: float = 0.2,
    kl_tau: float = 1e-3,
) -> TokenLoss:
    """Return -keep A ρ + kl_tau log² ρ with ρ = current / behaviour policy: a bound on the change of a probability.

    Tokens with A > 0 are dropped if their probability is more than `tv_high` above that of the sampler. Tokens with
    A <= 0 are dropped if it is more than `tv_low` below.
    Source: DPPO with binary total variation, as in prime-rl.
    """
    log_ratio, advantages = log_ratio_of(logprobs, behaviour, mask), selected(advantages, mask)
    with torch.no_grad():
        moved = selected(logprobs, mask).exp() - selected(behaviour, mask).exp()
        keep = ~torch.where(advantages > 0, moved > tv_high, moved < -tv_low)
    loss = torch.where(keep, -advantages * ratio_of(log_ratio), 0.0) + kl_tau * log_ratio**2
    return TokenLoss(loss, {"pg_clipfrac": (mask & ~keep).to(loss.dtype)})


def m2po(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    m2_tau: float = 0.04,
) -> TokenLoss:
    """Return the PPO clip loss without the most off-policy tokens, so that the mean of log² ρ is below `m2_tau`.

    ρ is proximal / behaviour policy. At least one token is kept. Tokens are compared within a micro-batch, so the
    result depends on `optim.micro_batch_size`. Source: M2PO (2510.01161), as in AReaL. Unlike there, dropped tokens
    remain in the denominators.
    """
    result = ppo_clip(
        logprobs, proximal, advantages, mask, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high
    )
    moment = torch.where(mask, log_ratio_of(proximal, behaviour, mask).detach() ** 2, torch.inf).flatten()
    order = moment.argsort(stable=True)
    running = moment[order].cumsum(0) / torch.arange(1, len(moment) + 1, device=moment.device)
    kept = order[: max(int((running < m2_tau).sum()), 1)]
    keep = torch.zeros_like(moment, dtype=torch.bool).index_fill(0, kept, value=True).view(mask.shape) & mask
    return _only(keep, result, mask)


def opsm(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    opsm_delta: float = 0.1,
) -> TokenLoss:
    """Return the PPO clip loss without bad answers that have become unlikely under the current policy.

    Tokens with A < 0 are dropped in answers whose mean of log(behaviour / current policy) is above `opsm_delta`.
    Source: DeepSeek-V3.2 (2512.02556).
    """
    result = ppo_clip(
        logprobs, proximal, advantages, mask, clip_ratio_low=clip_ratio_low, clip_ratio_high=clip_ratio_high
    )
    gone = log_ratio_of(behaviour, logprobs, mask).detach().sum(dim=1, keepdim=True) / lengths_of(mask)
    return _only(mask & ~((selected(advantages, mask) < 0) & (gone > opsm_delta)), result, mask)


def _only(keep: Tensor, result: TokenLoss, mask: Tensor) -> TokenLoss:
    dropped = (mask & ~keep).to(result.loss.dtype)
    return TokenLoss(torch.where(keep, result.loss, 0.0), {**result.stats, "pg_dropfrac": dropped})
