"""Read YAML files and overrides into one plain dictionary.

Values of later files win. A list replaces the list of the file before it, and an empty mapping clears one. A later file
that names another task or model does not inherit the options of the one before. A value that cannot be read is a fault,
and `INVALID` in the result.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hooktrainer.config.faults import Faults, first_line, short
from hooktrainer.config.interpolation import escaped, resolved
from hooktrainer.config.overrides import merged, overridden
from hooktrainer.config.short_forms import Expand
from hooktrainer.config.yaml_text import MAX_DEPTH, YamlError, read_yaml, write_yaml
from hooktrainer.errors import ConfigError, did_you_mean

_KINDS: Final[Mapping[type, str]] = {dict: "mapping", list: "list"}
_OWN_OPTIONS: Final = ("task", "model")
"""Sections whose options depend on `use`; engines share most of theirs."""
_ENCODINGS: Final[Mapping[bytes, str]] = {
    codecs.BOM_UTF32_LE: "UTF-32",  # starts with the mark of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_SCALARS: Final = (str, int, float, Path, type(None))


def read_files(paths: Sequence[Path], overrides: Iterable[str], expand: Expand, faults: Faults) -> dict[str, Any]:
    """Return the files merged in order, with overrides applied and interpolations resolved.

    Raises `ConfigError` with every fault of files that cannot be read or merged.
    """
    unreadable = Faults()
    layers = [_read_file(path, expand, unreadable.at(str(path))) for path in paths]
    unreadable.raise_if_any()
    data = overridden(_merged(layers, paths), overrides, expand, faults)
    return expand(resolved(data, faults), paths[0].parent)


def read_mapping(
    mapping: Mapping[str, object], overrides: Iterable[str], base: Path, expand: Expand, faults: Faults
) -> dict[str, Any]:
    """Return plain data with overrides applied and interpolations resolved; files are relative to `base`."""
    data = expand(_plain(mapping, 0), _literal(base))
    return expand(resolved(overridden(data, overrides, expand, faults), faults), base)


def to_yaml(data: Mapping[str, object]) -> str:
    """Return plain data as YAML that reads back the same; text that looks like an interpolation is escaped."""
    return write_yaml(escaped(data))


def _read_file(path: Path, expand: Expand, faults: Faults) -> dict[str, Any]:
    data: Any = None
    before = len(faults)
    try:
        raw = path.read_bytes()
        if encoding := next((name for mark, name in _ENCODINGS.items() if raw.startswith(mark)), None):
            raise YamlError(f"this is {encoding} text; save the file as UTF-8")
        data = read_yaml(raw.decode("utf-8"))
    except FileNotFoundError:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.y*ml")])
        override = "" if path.suffix in {".yaml", ".yml"} else " An override is written key=value, without blanks."
        faults.add(f"there is no such file.{near or override}")
    except IsADirectoryError:
        faults.add("this is a directory, not a YAML file")
    except UnicodeDecodeError as error:
        faults.add(f"this is not UTF-8 text: {error.reason} at byte {error.start}")
    except YamlError as error:
        faults.add(str(error))
    except (OSError, ValueError) as error:  # a path with a zero byte
        faults.add(f"cannot be read: {first_line(error)}")
    if len(faults) == before and not isinstance(data, dict):
        text = f"the top level must be a mapping such as `trainer: ...`, found {_named(data)}"
        faults.add("the file is empty" if data is None else text)
    elif data == {}:
        faults.add("the file is empty")
    return expand(data, _literal(path.parent)) if isinstance(data, dict) else {}


def _named(data: Any) -> str:
    return "a list" if isinstance(data, list) else f"only {short(data)}"


def _literal(directory: Path) -> Path:
    """Return a directory for data that will be interpolated, in which a `${` of its own is plain text."""
    return Path(escaped(str(directory.absolute())))


def _merged(layers: Sequence[dict[str, Any]], paths: Sequence[Path]) -> dict[str, Any]:
    faults, data = Faults(), dict[str, Any]()
    for path, layer in zip(paths, layers, strict=True):
        _clashes(data, layer, path, faults)
        faults.raise_if_any()
        kept = {key: value for key, value in data.items() if not _names_another(key, value, layer.get(key))}
        data = merged(kept, layer)
    return data


def _names_another(section: str, earlier: Any, later: Any) -> bool:
    both = section in _OWN_OPTIONS and isinstance(earlier, dict) and isinstance(later, dict)
    return both and "use" in later and later["use"] != earlier.get("use")


def _clashes(earlier: Any, later: Any, path: Path, faults: Faults) -> None:
    """Add a fault where one file has a list and another a mapping."""
    if isinstance(earlier, dict) and isinstance(later, dict):
        for key in [key for key in earlier if key in later]:
            _clashes(earlier[key], later[key], path, faults.at(key))
    elif {type(earlier), type(later)} == {dict, list}:
        faults.add(f"{path} has a {_KINDS[type(later)]} where an earlier file has a {_KINDS[type(earlier)]}")


def _plain(value: Any, depth: int) -> Any:
    """Return a copy of data that YAML can hold."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"a configuration is plain data: mappings and lists are at most {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {_plain(key, MAX_DEPTH): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    if not isinstance(value, _SCALARS):
        raise ConfigError(f"a configuration is plain data: Value '{type(value).__name__}' is not supported")
    return value
