"""Write a package with a plugin, a sink or a task of your own, and a test that passes at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from hooktrainer._util.streams import write_result, write_stderr


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the kind, the name, and where the package is written."""
    parser.add_argument("kind", metavar="plugin | sink | task", help="what the package is about")
    parser.add_argument("name", metavar="NAME", help="name of the package and its module, such as kl_stop")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where the folder NAME is created (default: the working directory)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the package, and print its files and what to do with them."""
    from hooktrainer.run.new_package import NewPackage

    package = NewPackage(args.kind, args.name)
    folder = package.write(args.directory)
    write_result("".join(f"{folder / name}\n" for name in package.files()))
    write_stderr(
        f"test it: python -m pytest {folder}\n"
        f"use it without an installation: use: {folder / package.name}.py:{package.class_name}\n"
        f"register the name {package.name}: pip install -e {folder}\n"
    )
    return 0
