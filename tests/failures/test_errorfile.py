"""The error file: written whole or not at all, read whatever it holds."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import TrainingLostError
from holdfast.failures import errorfile


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - any of them
        return caught


def test_the_format_is_the_one_that_torchrun_reads(tmp_path):
    path = tmp_path / "deep" / "error.json"

    assert errorfile.record(_raised(ValueError("no such layer")), str(path))

    message = json.loads(path.read_text())["message"]
    assert message["message"] == "ValueError: no such layer"
    assert "raise error" in message["extraInfo"]["py_callstack"]
    assert message["extraInfo"]["timestamp"].isdecimal()


def test_what_was_written_is_read_back(tmp_path):
    path = str(tmp_path / "error.json")
    errorfile.write(path, errorfile.describe(KeyError("x"), "Traceback...", now=12.7, error_code=3))

    error = errorfile.read(path)

    assert error is not None
    assert (error.message, error.traceback) == ("KeyError: 'x'", "Traceback...")
    assert (error.timestamp, error.error_code, error.type_name) == (12, 3, "KeyError")


@pytest.mark.parametrize(("error", "ends_job"), [(TrainingLostError("lost"), True), (ValueError("x"), False)])
def test_an_exception_says_whether_a_restart_can_mend_it(tmp_path, error, ends_job):
    path = str(tmp_path / "error.json")
    errorfile.record(error, path)

    read = errorfile.read(path)

    assert read is not None
    assert read.ends_job is ends_job


def test_the_older_form_is_read_too(tmp_path):
    path = tmp_path / "error.json"
    path.write_text('{"message": "it broke", "timestamp": 5}')

    error = errorfile.read(str(path))

    assert error is not None
    assert (error.message, error.timestamp) == ("it broke", 5)


def test_nothing_is_left_where_nothing_was_written(tmp_path):
    assert errorfile.read(str(tmp_path / "missing.json")) is None
    assert errorfile.read(None) is None
    assert errorfile.read(os.devnull) is None


def test_an_exception_that_cannot_be_printed_is_still_named(tmp_path):
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    path = str(tmp_path / "error.json")

    assert errorfile.record(_raised(Mute()), path)

    error = errorfile.read(path)
    assert error is not None
    assert error.message == "Mute"


def test_a_place_that_cannot_be_written_is_reported_not_raised(tmp_path):
    (tmp_path / "file").write_text("")

    assert not errorfile.write(str(tmp_path / "file" / "error.json"), {"message": "x"})


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "error.json"
    with path.open("wb") as file:
        file.truncate(errorfile.FILE_BYTES_MAX + 1)

    error = errorfile.read(str(path))

    assert error is not None
    assert "larger than" in error.message


def test_a_fifo_in_its_place_does_not_block(tmp_path):
    path = tmp_path / "error.json"
    os.mkfifo(path)

    error = errorfile.read(str(path))

    assert error is not None
    assert "not a regular file" in error.message


def test_long_messages_keep_both_ends(tmp_path):
    path = str(tmp_path / "error.json")
    errorfile.record(_raised(ValueError("A" * 200_000 + "Z")), path)

    error = errorfile.read(path)

    assert error is not None
    assert error.message.startswith("ValueError: A")
    assert error.message.endswith("Z")
    assert len(error.message) < 70_000


@given(st.binary(max_size=300))
def test_garbage_never_raises(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("garbage") / "error.json"
    path.write_bytes(data)

    errorfile.read(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        '{"message": null}',
        '{"message": {"message": 3, "extraInfo": []}}',
        '{"message": {"extraInfo": {"py_callstack": {}, "timestamp": "soon"}}}',
        '{"message": {"extraInfo": {"timestamp": 1e400}, "errorCode": "x"}}',
        "[" * 100_000,
    ],
)
def test_strange_json_never_raises(tmp_path, text):
    path = tmp_path / "error.json"
    path.write_text(text)

    assert errorfile.read(str(path)) is not None
