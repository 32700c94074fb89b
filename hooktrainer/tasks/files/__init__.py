"""Rows of a data file as plain JSON values, read one by one: JSONL, CSV, Parquet and folders of `datasets`."""

from __future__ import annotations

from hooktrainer.tasks.files.formats import first_row, open_rows
from hooktrainer.tasks.files.rows import Rows

__all__ = ["Rows", "columns", "first_row", "open_rows"]
