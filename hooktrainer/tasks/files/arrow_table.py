"""Tables of pyarrow: Parquet files, and folders written by `save_to_disk` of the library datasets."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hooktrainer.errors import ConfigError, message_of
from hooktrainer.tasks.files.rows import digest_of_files

if TYPE_CHECKING:
    import pyarrow as pa

STATE_FILE: Final = "state.json"
"""Lists the files of a folder that `save_to_disk` wrote."""
SPLITS_FILE: Final = "dataset_dict.json"
"""Lists the splits of a folder that `save_to_disk` wrote for several splits."""
_ROWS_AT_ONCE: Final = 1024


class ArrowTable:
    """A table in Arrow's memory format. Rows are converted to Python objects when they are read."""

    def __init__(self, path: Path) -> None:
        """Read a Parquet file, or a folder. Raises `ConfigError` if it cannot be read."""
        self._path = path
        files = _files_of(path)
        self.digest = digest_of_files(files)
        with _named(path):
            self._table = _read(files)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        (row,) = self._table.slice(number, 1).to_pylist()
        return {name: plain(value) for name, value in row.items()}

    def select(self, columns: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield each row with at least these of its columns."""
        chosen = self._table.select([name for name in self._table.column_names if name in columns])
        for batch in chosen.to_batches(max_chunksize=_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield {name: plain(value) for name, value in row.items()}

    def place(self, number: int) -> str:
        """Return the number of a row."""
        return f"{self._path}, row {number + 1}"


def first_arrow_row(path: Path) -> dict[str, Any] | None:
    """Return the first row of a Parquet file or a folder; None if it has none."""
    with _named(path):
        for file in _files_of(path):
            for batch in _batches(file):
                if batch.num_rows:
                    return {name: plain(value) for name, value in batch.slice(0, 1).to_pylist()[0].items()}
    return None


def plain(value: Any) -> Any:
    """Return a value of pyarrow as plain JSON: dates as ISO text, decimals as floats, bytes as base64."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _converted(value)


def _converted(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (splits := path / SPLITS_FILE).is_file():
        names = json.loads(splits.read_bytes())["splits"]
        raise ConfigError(f"{path} holds the splits {', '.join(names)}; name one of them, as in {path / names[0]}")
    if (state := path / STATE_FILE).is_file():
        return [path / part["filename"] for part in json.loads(state.read_bytes())["_data_files"]]
    if files := sorted(path.glob("*.parquet")):
        return files
    text = f"{path} is a folder without {STATE_FILE} of `save_to_disk` and without Parquet files"
    raise ConfigError(f"{text}. Name a file in it, or a folder that `save_to_disk` of datasets wrote")


def _read(files: list[Path]) -> pa.Table:
    """Return the rows of all files. Files of `datasets` are mapped into memory, not copied."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(file) if file.suffix == ".parquet" else _stream(file).read_all() for file in files]
    return pa.concat_tables(tables, promote_options="default") if len(tables) > 1 else tables[0]


def _batches(file: Path) -> Iterator[pa.RecordBatch]:
    if file.suffix != ".parquet":
        yield from _stream(file)
        return
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as opened:
        yield from opened.iter_batches(batch_size=1)


def _stream(file: Path) -> pa.RecordBatchStreamReader:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(file)))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise the errors of pyarrow as `ConfigError` with the name of the file."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ConfigError(f"{path} needs pyarrow, which is not installed: pip install 'hooktrainer[data]'") from error
    try:
        yield
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise ConfigError(f"{path} cannot be read: {message_of(error).partition(chr(10))[0]}") from error
