"""The command line: every module here without a leading underscore is a command.

A command has a docstring whose first line is its help, and two functions, `add_arguments(parser)` and `run(args)`. It
imports its dependencies inside of `run`, so that every command starts quickly.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import pairwise

from hooktrainer._util.forks import Original, exit_now
from hooktrainer._util.signals import Aborted
from hooktrainer._util.streams import OutputLostError, prepare, write_result, write_stderr
from hooktrainer.cli._config import overrides_meant, split
from hooktrainer.cli._exit import leave_with
from hooktrainer.errors import (
    MAX_LINE,
    ConfigError,
    Fault,
    HookTrainerError,
    listed,
    message_of,
    notes_of,
    traceback_of,
)

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns 0 when done, 2 if the configuration is wrong, 1 on failure, 130 if interrupted."""
    prepare()
    try:
        args = _parse(argv)
    except SystemExit:  # after --help or a usage error
        with suppress(OutputLostError):
            write_result("")
        write_stderr("")  # Python would exit with another code if it could not flush the streams
        raise
    # `package.module:Class` is imported from the working directory, as under `python -m hooktrainer`.
    if os.getcwd() not in sys.path:  # noqa: PTH109 (sys.path holds strings)
        sys.path.append(os.getcwd())  # noqa: PTH109
    return leave_with(lambda: _code(args), exits=argv is None)


def _code(args: argparse.Namespace) -> int:  # noqa: PLR0911 (one for each way to end)
    try:
        with Original().without_copies():
            code: int = args.run(args)
        write_result("")  # flush what user code printed
    except ConfigError as error:
        write_stderr(_faults_text(error, getattr(args, "config", ())))
        return 2
    except OutputLostError:
        return 1
    except Aborted:
        write_stderr("aborted; writes in progress were not completed\n")
        exit_now(130)
    except KeyboardInterrupt:
        write_stderr("interrupted\n")
        return 130
    except SystemExit as error:  # raised by a signal or by user code: a failure, also with code 0
        write_stderr(_exit_text(error))
        return error.code if isinstance(error.code, int) and 0 < error.code < 256 else 1
    except HookTrainerError as error:
        write_stderr(_failure_text(error))
        return 1
    except BaseException as error:  # noqa: BLE001 (shown whole; the exit code is part of the interface)
        write_stderr(traceback_of(error))
        return 1
    return code


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    if rest and (not hasattr(args, "config") or any(argument.startswith("-") for argument in rest)):
        given = sys.argv[1:] if argv is None else argv
        overrides = overrides_meant(rest, given, args.config) if hasattr(args, "config") else []
        hint = f"; an override has no dashes: {shlex.join(overrides)}" if overrides else ""
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
    if rest:
        args.config += rest  # argparse takes positional arguments in one piece, so an option may have cut them
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hooktrainer", description="Event-driven trainer for asynchronous RL post-training of language models."
    )
    parser.add_argument("--version", action="version", version=f"hooktrainer {version('hooktrainer')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for found in pkgutil.iter_modules(__path__):
        if not found.name.startswith("_"):
            module = importlib.import_module(f"{__name__}.{found.name}")
            summary = (module.__doc__ or "").partition("\n")[0]
            command = commands.add_parser(found.name, help=summary, description=module.__doc__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _faults_text(error: ConfigError, arguments: Sequence[str]) -> str:
    files, _ = split(arguments)
    count = f"{len(error.faults)} fault{'s' if len(error.faults) != 1 else ''}"
    overridden = [bool(fault.override) for fault in error.faults]
    places = [f"in {', '.join(files)}"] if files and not all(overridden) else []
    places += ["on the command line"] if any(overridden) else []
    heading = f"{count} {' and '.join(places)}".strip()
    return "\n".join([f"{heading}:", *(f"  {text}" for text in listed(error.faults, _fault_text)), ""])


def _fault_text(fault: Fault) -> str:
    sources = "; ".join(filter(None, (fault.plugin, fault.override and f"override {fault.override}")))
    place = " ".join(filter(None, (fault.address, sources and f"({sources})")))
    return f"{place}: {fault.message}" if place else fault.message


def _exit_text(error: SystemExit) -> str:
    if error.code in (128 + signal.SIGTERM, 128 + signal.SIGHUP):  # the notes name a handler that did not cause it
        return "terminated\n"
    code = error.code if error.code is None or isinstance(error.code, int) else repr(message_of(error.code))
    return "\n".join([f"the run was ended by SystemExit({code})", *(f"  {note}" for note in notes_of(error)), ""])


def _failure_text(error: HookTrainerError) -> str:
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    if not isinstance(chain[-1], HookTrainerError):  # an error of a user's code needs its traceback
        return traceback_of(error)
    notes = [note for raised in chain for note in notes_of(raised)]
    texts = [message_of(error)]
    texts += [
        message_of(cause) for raised, cause in pairwise(chain) if message_of(cause, MAX_LINE) not in message_of(raised)
    ]
    return "\n".join([f"the run failed: {': '.join(texts)}", *(f"  {note}" for note in notes), ""])
