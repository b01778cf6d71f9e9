"""Classification: the kind of a failure follows from the evidence."""

import pytest

from holdfast.failures import ErrorData, Evidence, Kind, classify, explain, speaks_as_victim
from holdfast.failures.classify import describe_exit, reason

VALUE_ERROR = ErrorData("ValueError: bad", "Traceback")


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        (Evidence(1, VALUE_ERROR), Kind.EXCEPTION),
        (Evidence(3, ErrorData("SystemExit: 3")), Kind.EXIT),
        (Evidence(7), Kind.EXIT),
        (Evidence(-11), Kind.SIGNAL),
        (Evidence(-9), Kind.SIGNAL),
        (Evidence(-9, oom_kills=1), Kind.OUT_OF_MEMORY),
        (Evidence(-15, oom_kills=1), Kind.SIGNAL),
        (Evidence(-15, signalled_by_us=True), Kind.STOPPED),
        (Evidence(-9, signalled_by_us=True, oom_kills=1), Kind.STOPPED),
        (Evidence(1, VALUE_ERROR, signalled_by_us=True), Kind.STOPPED),
        (Evidence(-9, signalled_by_us=True, timed_out=True), Kind.TIMEOUT),
        (Evidence(1, ErrorData("RuntimeError: Connection closed by peer [10.0.0.1]:123")), Kind.VICTIM),
        (Evidence(-6, log_lines=("x", "ncclRemoteError: a remote process exited")), Kind.VICTIM),
        (Evidence(1, VALUE_ERROR, log_lines=("Broken pipe",)), Kind.EXCEPTION),
    ],
)
def test_evidence_gives_the_kind(evidence, kind):
    assert classify(evidence) is kind


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:29399",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "torch.distributed.DistBackendError: ncclRemoteError: A call failed, maybe due to a network error",
        "DistNetworkError: failed to recv, got 0 bytes",
        "Connection was likely closed. Did the remote server shutdown or crash?",
        "RuntimeError: Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_the_words_of_victims_are_known(text):
    assert speaks_as_victim(text)


@pytest.mark.parametrize("text", ["ValueError: bad shape", "CUDA out of memory", "assertion failed: peer == 3"])
def test_other_words_are_not(text):
    assert not speaks_as_victim(text)


def test_every_kind_is_explained_in_a_sentence():
    assert explain(Kind.EXCEPTION, Evidence(1, VALUE_ERROR)) == "ValueError: bad"
    assert explain(Kind.EXIT, Evidence(7)) == "exited with code 7 without a traceback"
    assert explain(Kind.SIGNAL, Evidence(-11)) == "killed by SIGSEGV"
    assert explain(Kind.SIGNAL, Evidence(-9)) == (
        "killed by SIGKILL from outside Holdfast (often the kernel's OOM killer: see dmesg)"
    )
    assert "memory" in explain(Kind.OUT_OF_MEMORY, Evidence(-9))
    assert "hung" in explain(Kind.TIMEOUT, Evidence(-9))
    assert "stopped by its agent" in explain(Kind.STOPPED, Evidence(-15))


def test_the_reason_is_what_the_exit_code_does_not_say():
    assert reason(Kind.EXIT, Evidence(7)) == reason(Kind.SIGNAL, Evidence(-11)) == ""
    assert reason(Kind.EXCEPTION, Evidence(1, VALUE_ERROR)) == "ValueError: bad"
    assert reason(Kind.SIGNAL, Evidence(-9)).startswith("from outside Holdfast")
    assert reason(Kind.TIMEOUT, Evidence(-9)) == "hung"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "no exit code is known"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (137, "exit code 137, SIGKILL"),
        (160, "exit code 160"),
    ],
)
def test_an_exit_code_is_told_in_words(code, said):
    assert describe_exit(code) == said
