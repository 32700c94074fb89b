"""Reward functions of users, bound by the names of their parameters as verl and TRL call them."""

from __future__ import annotations

from hooktrainer.tasks.rewards.binding import Binding, Names
from hooktrainer.tasks.rewards.options import REWARDS, RewardOptions
from hooktrainer.tasks.rewards.scores import Rewards

__all__ = ["REWARDS", "Binding", "Names", "RewardOptions", "Rewards", "activity"]
