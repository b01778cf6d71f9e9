"""What is read out of the words of Docker and Podman."""

import json

import pytest

from holdfast.errors import UnavailableError, UsageError
from holdfast.schedulers.containers.parse import Outcome, is_gone, parse_state, trouble, user_ids


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ({"Running": True, "ExitCode": 0}, Outcome(True, 0)),
        ({"Running": False, "ExitCode": 3}, Outcome(False, 3)),
        ({"Running": False, "ExitCode": 137, "OOMKilled": True}, Outcome(False, -9, True)),
        ({"Running": False, "ExitCode": 143}, Outcome(False, -15)),
        ({"Running": False, "ExitCode": 255}, Outcome(False, 255)),
        ({"Running": False, "ExitCode": 127, "Error": "no such file"}, Outcome(False, 127, False, "no such file")),
        ({"Running": False, "Paused": True, "ExitCode": 0}, Outcome(True, 0)),
    ],
)
def test_a_state_is_read(state, wanted):
    assert parse_state(json.dumps(state)) == wanted


@pytest.mark.parametrize(
    ("said", "kind", "wanted"),
    [
        (
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            UnavailableError,
            "docker does not answer: .*DOCKER_HOST",
        ),
        ("Error: No such image: a:1", UsageError, "cannot: Error: No such image: a:1; pull the image"),
        ("Error response from daemon: pull access denied for a, repository does not exist", UsageError, "pull"),
        ("unknown flag: --x\nSee 'docker create --help'.", UsageError, "cannot: unknown flag: --x"),
        ("", UnavailableError, "it says no more"),
    ],
)
def test_a_failure_is_told_by_whose_fault_it_is(said, kind, wanted):
    with pytest.raises(kind, match=wanted):
        raise trouble("docker", "cannot", said)


def test_what_is_gone_is_no_failure():
    assert is_gone("Error: No such container: x")
    assert is_gone("Error: no container with name or ID x found")
    assert not is_gone("permission denied")


PASSWD = "root:x:0:0::/root:/bin/sh\nsam:x:1234:5678::/:/bin/sh\n"


@pytest.mark.parametrize(
    ("user", "wanted"),
    [
        ("", (0, 0)),
        ("sam", (1234, 5678)),
        ("sam:9", (1234, 9)),
        ("77", (77, 0)),
        ("77:88", (77, 88)),
        ("1234", (1234, 5678)),
    ],
)
def test_a_containers_user_is_found(user, wanted):
    assert user_ids(user, PASSWD) == wanted


def test_a_user_that_the_image_does_not_know_is_told():
    with pytest.raises(UsageError, match="-cfg user=UID:GID"):
        user_ids("tom", PASSWD)
