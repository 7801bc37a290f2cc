"""Records: whole lines only, nothing lost, and enough to run a number again."""

import math

import pytest

from rocketkv.records import RecordError, append_record, digest, read_records, stamp


def test_records_come_back_in_order(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    assert read_records(path) == []
    for number in range(3):
        append_record(path, {"number": number, "text": "größer\n"})
    assert [record["number"] for record in read_records(path)] == [0, 1, 2]
    assert path.read_bytes().count(b"\n") == 3


def test_a_torn_last_line_is_no_record_and_is_replaced(tmp_path):
    path = tmp_path / "records.jsonl"
    append_record(path, {"a": 1})
    with path.open("ab") as file:
        file.write('{"a": 2, "text": "gr\u00f6'.encode()[:-1])
    assert read_records(path) == [{"a": 1}]
    append_record(path, {"a": 3})
    assert read_records(path) == [{"a": 1}, {"a": 3}]


def test_a_file_that_is_one_torn_line_starts_anew(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"a"')
    append_record(path, {"a": 1})
    assert read_records(path) == [{"a": 1}]


def test_a_damaged_line_in_the_middle_is_refused_by_its_number(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(RecordError, match="line 2"):
        read_records(path)


def test_what_is_no_json_is_not_written(tmp_path):
    path = tmp_path / "records.jsonl"
    with pytest.raises(ValueError, match="JSON"):
        append_record(path, {"score": math.nan})
    assert read_records(path) == []


def test_the_stamp_names_code_machine_and_versions():
    made = stamp()
    assert set(made) == {"commit", "dirty", "host", "versions"}
    assert made["host"]["cores"] >= 1 and made["host"]["cpu"]
    assert {"rocketkv", "python", "torch", "transformers"} <= set(made["versions"])
    made["host"]["cpu"] = "changed"
    assert stamp()["host"]["cpu"] != "changed"


def test_the_digest_tells_prompts_apart():
    assert digest([1, 23]) != digest([12, 3])
    assert digest([1, 23]) == digest((1, 23))
