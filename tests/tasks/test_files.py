"""Data files: every format gives the same rows as plain JSON, and errors name the file, the line and the column."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hooktrainer.errors import ConfigError
from hooktrainer.tasks.files import first_row, open_rows
from hooktrainer.tasks.files.columns import MISSING, missing_column, value_at

ROWS = [
    {"prompt": "Straße?", "truth": "007", "extra": {"index": 0, "tags": ["a", "b"]}},
    {"prompt": 'say "hi",\nplease', "truth": "hi", "extra": {"index": 1, "tags": []}},
]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 3, "split": "train"},
}


def save_to_disk(path: Path, table: pa.Table, files: int = 1) -> Path:
    """Write a folder as `datasets.Dataset.save_to_disk` does."""
    path.mkdir(parents=True)
    share = -(-len(table) // files)
    names = [f"data-{index:05}-of-{files:05}.arrow" for index in range(files)]
    for index, name in enumerate(names):
        part = table.slice(index * share, share)
        with pa.OSFile(str(path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(part)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (path / "dataset_info.json").write_text("{}")
    return path


def written(folder: Path, form: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"train.{form}"
    match form:
        case "jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case "folder":
            save_to_disk(path, pa.Table.from_pylist(rows), files=2)
        case "csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    return path


@pytest.mark.parametrize("form", ["jsonl", "parquet", "folder"])
def test_nested_rows_are_the_same_in_every_format(form: str, tmp_path: Path) -> None:
    path = written(tmp_path, form, ROWS)

    rows = open_rows(path)

    assert [rows[number] for number in range(len(rows))] == ROWS
    assert list(rows.select({"prompt", "truth", "extra"})) == ROWS
    assert first_row(path) == ROWS[0]
    json.dumps(rows[0])


def test_values_of_csv_are_texts_with_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    flat = [{"prompt": row["prompt"], "truth": row["truth"]} for row in ROWS]
    rows = open_rows(written(tmp_path, "csv", flat))

    assert [rows[number] for number in range(len(rows))] == flat
    assert rows.place(1).endswith("train.csv, line 4")


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}')
    rows = open_rows(path)

    assert [rows[number]["prompt"] for number in range(len(rows))] == ["a", "b"]
    assert rows.place(1).endswith("line 4")
    assert first_row(path) == {"prompt": "a"}


def test_values_of_arrow_types_become_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "when": [dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)],
            "price": [decimal.Decimal("1.50")],
            "image": [b"\x00\xff"],
            "took": [dt.timedelta(seconds=90)],
            "small": pa.array([0.5], pa.float32()),
            "pairs": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
            "word": pa.array(["x"]).dictionary_encode(),
        }
    )
    pq.write_table(table, path)

    row = open_rows(path)[0]

    assert json.loads(json.dumps(row)) == row
    assert row["when"] == "2026-01-02T03:00:00+00:00"
    assert (row["price"], row["image"], row["took"], row["small"], row["word"]) == (1.5, "AP8=", 90.0, 0.5, "x")


def test_the_parquet_files_of_a_folder_are_read_as_one(tmp_path: Path) -> None:
    for index in (0, 1):
        pq.write_table(pa.Table.from_pylist([ROWS[index]]), tmp_path / f"train-{index}.parquet")

    assert [row["truth"] for row in open_rows(tmp_path).select({"truth"})] == ["007", "hi"]


def test_the_checksum_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    first = open_rows(written(tmp_path, "jsonl", ROWS)).digest
    (tmp_path / "train.jsonl").rename(tmp_path / "moved.jsonl")
    assert open_rows(tmp_path / "moved.jsonl").digest == first
    assert open_rows(written(tmp_path, "jsonl", [*ROWS, ROWS[0]])).digest != first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": ', r"train.jsonl, line 2: not valid JSON: .*one JSON object"),
        ('{"prompt": "a"}\n\n"b"', r"line 3: expected a JSON object .* found 'b'"),
        ('[{"prompt": "a"}]', r"line 1: expected a JSON object.*write each of its items as a line"),
        ('[\n{"prompt": "a"}\n]', r"line 1: not valid JSON.*write each of its items as a line"),
        ('{"prompt": "a"}\n{"prompt": "\udce4"}', r"line 2: not UTF-8 text: .* at byte 12 of the line"),
        (f"{'[' * 200_000}", r"line 1: the JSON object is nested too deeply"),
        ('{"prompt": "a", "truth": "1", "prompt": "b"}', r"line 1: the JSON object has the key 'prompt' twice"),
        ('{"prompt": "a", "x": [{"y": 1, "y": 1}]}', r"line 1: the JSON object has the key 'y' twice"),
        (
            '{"prompt": "a"}\n{"prompt": "\\ud83d"}',
            r"line 2: the text '\\ud83d' has half of a surrogate pair, '\\ud83d'",
        ),
        ('{"prompt": "a", "x": ["b\\uDE00c"]}', r"line 1: the text 'b\\ude00c' has half of a surrogate pair"),
        ('{"prompt": "a", "\\udc80": 1}', r"line 1: the text '\\udc80' has half of a surrogate pair"),
    ],
)
def test_a_bad_line_of_jsonl_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(ConfigError, match=message):
        list(open_rows(path).select({"prompt"}))


def test_a_surrogate_pair_of_jsonl_is_one_character(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "\\ud83d\\ude00", "path": "C:\\\\udata"}')

    assert open_rows(tmp_path / "train.jsonl")[0] == {"prompt": "\N{GRINNING FACE}", "path": "C:\\udata"}


@pytest.mark.parametrize(
    ("text", "line", "byte"),
    [("a,1\nb\xff,2\n", 3, 1), ("a,1\n" * 5000 + "b,\xe4\n" + "c,3\n" * 5000, 5002, 2), ("\xff,1\n", 2, 0)],
)
def test_a_line_of_csv_that_is_not_utf_8_is_named(text: str, line: int, byte: int, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(f"prompt,truth\n{text}".encode("latin-1"))

    for read in (open_rows, first_row):
        if read is open_rows or line < 4:
            with pytest.raises(
                ConfigError, match=rf"train.csv, line {line}: not UTF-8 text: .* at byte {byte} of the line"
            ):
                read(tmp_path / "train.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,truth\na,1\nb\n", r"train.csv, line 3: 1 values, but the header has 2 columns"),
        ("prompt,prompt\na,1\n", r"line 1: the header has the column 'prompt' twice"),
        ('prompt,truth\n"a"b,1\n', r"line 2: not valid CSV"),
    ],
)
def test_a_bad_line_of_csv_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(text)

    with pytest.raises(ConfigError, match=message):
        open_rows(tmp_path / "train.csv")


def test_files_that_cannot_be_read_are_refused_with_a_remedy(tmp_path: Path) -> None:
    written(tmp_path, "jsonl", ROWS)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and more")
    (tmp_path / "notes.txt").write_text("a")
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "none.jsonl").write_text("\n")
    for name, message in {
        "train.jsonI": r"there is no file .*train.jsonI; .*YAML.* Did you mean 'train.jsonl'\?",
        "broken.parquet": r"broken.parquet cannot be read: ",
        "notes.txt": r"unknown format; it must end in .jsonl, .*, or be a folder written by `save_to_disk`",
        "splits": r"holds the splits train, test; name one of them, as in .*splits/train",
        "empty": r"a folder without state.json of `save_to_disk` and without Parquet files",
        "none.jsonl": r"none.jsonl has no rows",
    }.items():
        with pytest.raises(ConfigError, match=message):
            first_row(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reward_model.ground_truth", "4"),
        ("extra_info.index", 3),
        ("prompt.0.content", "2 + 2?"),
        ("ability", "math"),
        ("ability.x", MISSING),
        ("prompt.1", MISSING),
        ("prompt.role", MISSING),
        ("reward_model.missing", MISSING),
    ],
)
def test_dotted_names_reach_into_nested_columns(name: str, value: object) -> None:
    assert value_at(VERL, name) == value


def test_a_column_whose_name_has_a_dot_comes_first() -> None:
    assert value_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1


def test_a_missing_column_is_answered_with_the_columns_and_the_closest_one() -> None:
    assert missing_column(VERL, "reward_model.ground_thruth").endswith("Did you mean 'reward_model.ground_truth'?")
    assert "there are data_source, prompt, ability, reward_model, reward_model.style" in missing_column(VERL, "x")
