"""The argument of the commands that read a trained model."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hooktrainer._util.streams import write_stderr

if TYPE_CHECKING:
    from hooktrainer.run.trained import Trained


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add `RUN | MODEL`."""
    parser.add_argument(
        "model",
        metavar="RUN | MODEL",
        help="a run directory, whose `model` is used, or else its newest checkpoint; or the folder of a model, in the "
        "format of Hugging Face or of a decoder that a run saved",
    )


def trained_model(args: argparse.Namespace) -> Trained:
    """Return the model of the argument; name the checkpoint on standard error if it is one."""
    from hooktrainer.run.trained import RestoredModel, find_trained

    trained = find_trained(Path(args.model))
    if isinstance(trained.model, RestoredModel):
        write_stderr(f"there is no exported model; using the checkpoint {os.path.relpath(trained.place)}\n")
    return trained
