"""Reading logs: as they grow, whatever is in them, and never the whole file."""

import tracemalloc
from pathlib import Path

import pytest

from console.launch import logs
from console.launch.logs import LogReader, tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "1.log"


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def test_lines_are_given_once_and_only_when_complete(log: Path) -> None:
    reader = LogReader(log)
    append(log, b"one\ntw")
    assert reader.new_lines() == ["one"]
    append(log, b"o\nthree\n")
    assert reader.new_lines() == ["two", "three"]
    assert reader.new_lines() == []


def test_a_log_that_does_not_exist_yet_is_empty(log: Path) -> None:
    assert LogReader(log).new_lines() == []
    assert LogReader(log).grew_at is None


def test_a_progress_bar_gives_its_states_as_lines(log: Path) -> None:
    append(log, b"\r 0%\r 50%\r100%\n\n\r\ndone\n")
    assert LogReader(log).new_lines() == [" 0%", " 50%", "100%", "done"]


def test_characters_of_several_bytes_are_not_cut(log: Path) -> None:
    reader = LogReader(log)
    text = "█▄█▀ Größe 模型\n".encode()
    for position in range(len(text)):
        append(log, text[position : position + 1])
        lines = reader.new_lines()
        assert lines == (["█▄█▀ Größe 模型"] if position == len(text) - 1 else [])


def test_bytes_that_are_no_text_do_no_harm(log: Path) -> None:
    append(log, b"\xff\xfe\x00 line\n")
    assert len(LogReader(log).new_lines()) == 1


def test_an_endless_line_is_given_out_in_parts(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINE_LIMIT_BYTES", 100)
    monkeypatch.setattr(logs, "READ_LIMIT_BYTES", 250)
    append(log, b"x" * 1000)
    reader = LogReader(log)
    assert reader.new_lines() == ["x" * 100]
    assert reader.offset == 250


def test_one_look_reads_a_bounded_amount(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "READ_LIMIT_BYTES", 10)
    append(log, b"123456\n" * 3)
    reader = LogReader(log)
    assert [reader.new_lines() for _ in range(3)] == [["123456"]] * 3


def test_what_is_left_without_an_end_can_be_had(log: Path) -> None:
    append(log, b"one\nlast words")
    reader = LogReader(log)
    reader.new_lines()
    assert reader.rest() == ["last words"]


def test_old_lines_can_be_skipped(log: Path) -> None:
    append(log, b"old\n" * 100 + b"new\n")
    reader = LogReader(log)
    reader.skip_to_last(4)
    assert reader.new_lines() == ["new"]
    reader.skip_to_last(400)
    assert reader.new_lines() == []


def test_the_tail_is_cut_at_a_line(log: Path) -> None:
    append(log, b"first line\nsecond line\nthird line\n")
    found = tail(log, 25, [])
    assert (found["text"], found["truncated"], found["size_bytes"]) == ("second line\nthird line\n", True, 34)


def test_a_short_log_is_there_as_a_whole(log: Path) -> None:
    append(log, b"first line\n")
    found = tail(log, 1000, [])
    assert (found["text"], found["truncated"]) == ("first line\n", False)


def test_the_tail_of_no_log_is_empty(log: Path) -> None:
    assert tail(log, 1000, [])["text"] == ""


def test_the_tail_shows_the_last_state_of_a_progress_bar(log: Path) -> None:
    append(log, b"load:  0%\rload: 50%\rload: 100%\r\nnext\n")
    assert tail(log, 1000, [])["text"] == "load: 100%\nnext\n"


def test_the_tail_begins_with_a_whole_character(log: Path) -> None:
    append(log, ("ö" * 50 + "\n" + "ü" * 10 + "\n").encode())
    assert tail(log, 30, [])["text"] == "ü" * 10 + "\n"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("key sk-abc and sk-abc-long", "key *** and ***"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("hf_abcdefghijklmnopqrstuvwx is a token", "*** is a token"),
        ("redis://:hunter2@10.0.0.1:6379/0", "redis://***@10.0.0.1:6379/0"),
        ("http://10.0.0.1:21000/v1", "http://10.0.0.1:21000/v1"),
    ],
)
def test_secrets_are_masked(log: Path, written: str, shown: str) -> None:
    append(log, written.encode())
    assert tail(log, 1000, ["sk-abc", "sk-abc-long", ""])["text"] == shown


def test_a_huge_log_costs_only_its_tail(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(200 << 20)
        file.seek(0, 2)
        file.write(b"\nlast line\n")
    tracemalloc.start()
    found = tail(log, 64 << 10, [])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["text"].endswith("last line\n")
    assert peak < 1 << 20


def test_nobody_can_ask_for_more_than_a_mebibyte(log: Path) -> None:
    append(log, b"x" * 99 + b"\n")
    append(log, (b"y" * 99 + b"\n") * 20_000)
    assert len(tail(log, 1 << 30, [])["text"]) <= 1 << 20
