"""`record`, `ErrorHandler`, `ProcessFailure` and `ChildFailedError` behave as programs expect."""

import json

import pytest

from holdfast.failures import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    errorfile,
    get_error_handler,
    record,
)


@pytest.fixture
def error_file(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


class Quiet(ErrorHandler):
    def initialize(self) -> None:
        """Leave pytest's own faulthandler alone."""


def _child_file(tmp_path, timestamp=10):
    path = str(tmp_path / f"child{timestamp}.json")
    errorfile.write(path, errorfile.describe(ValueError("child"), "Traceback of child", now=timestamp))
    return path


def test_record_leaves_the_error_and_raises_it(error_file):
    def main():
        raise KeyError("lost")

    with pytest.raises(KeyError):
        record(main, Quiet())()

    assert json.loads(error_file.read_text())["message"]["message"] == "KeyError: 'lost'"


def test_record_passes_the_return_value_and_counts_a_clean_exit_as_return(error_file):
    assert record(lambda: 42, Quiet())() == 42

    def leave(code):
        raise SystemExit(code)

    assert record(leave, Quiet())(0) is None
    with pytest.raises(SystemExit):
        record(leave, Quiet())(3)
    assert not error_file.exists()


def test_record_passes_a_childs_error_file_upwards(error_file, tmp_path):
    failures = {0: ProcessFailure(0, 11, 7, _child_file(tmp_path))}

    def main():
        raise ChildFailedError("train.py", failures)

    with pytest.raises(ChildFailedError):
        record(main, Quiet())()

    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: child"
    assert message["errorCode"] == 7


def test_dumping_over_an_own_error_keeps_both(error_file, tmp_path):
    error_file.write_text("{}")

    get_error_handler().dump_error_file(_child_file(tmp_path))

    assert error_file.with_name("mine.json.before").read_text() == "{}"
    assert "child" in error_file.read_text()


def test_an_error_code_does_not_fit_into_the_older_form():
    data = {"message": "text"}

    ErrorHandler().override_error_code_in_rootcause_data("x.json", data, 3)

    assert data == {"message": "text"}


def test_a_process_failure_reads_its_error_file(tmp_path):
    failure = ProcessFailure(0, 11, 1, _child_file(tmp_path))

    assert failure.message == "Traceback of child"
    assert failure.timestamp == 10
    assert failure.error_file_data["message"]["message"] == "ValueError: child"
    assert failure.timestamp_isoformat()


def test_a_process_failure_without_a_file_names_the_signal(tmp_path):
    failure = ProcessFailure(0, 11, -9, str(tmp_path / "none.json"))

    assert failure.signal_name() == "SIGKILL"
    assert failure.message == "Signal 9 (SIGKILL) received by PID 11"
    assert failure.error_file == "<N/A>"
    assert ProcessFailure(0, 11, 2, "").signal_name() == "<N/A>"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b"[1", b'{"a": 1}', b'{"message": {}}'])
def test_a_malformed_file_never_raises(tmp_path, content):
    path = tmp_path / "error.json"
    path.write_bytes(content)

    ProcessFailure(0, 11, 1, str(path))


def test_error_data_is_not_shared_between_failures():
    first, second = ProcessFailure(0, 1, 1, ""), ProcessFailure(1, 2, 1, "")
    first.error_file_data["mine"] = True

    assert "mine" not in second.error_file_data


def test_child_failed_error_names_the_first_failure(tmp_path):
    late, early = (
        ProcessFailure(0, 11, 1, _child_file(tmp_path, 20)),
        ProcessFailure(1, 12, 2, _child_file(tmp_path, 10)),
    )

    error = ChildFailedError("train.py", {4: late, 5: early})

    assert error.get_first_failure() == (5, early)
    text = error.format_msg()
    assert "train.py FAILED" in text
    assert (
        text.index("rank      : 4") < text.index("Root Cause (first observed failure):") < text.index("rank      : 5")
    )
