"""What `import holdfast` offers: names that can be completed, explained and typed, and that cost nothing before use."""

from __future__ import annotations

import ast
import pydoc
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

import holdfast
from tests import api_page

SOURCE = Path(holdfast.__file__)
#: The names of 2019, which are torchelastic's.
OF_2019 = (
    "Coordinator",
    "NonRetryableException",
    "SimpleWorkerStats",
    "StopException",
    "WorkerStats",
    "p2p",
    "run_train",
)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_holdfast_loads_nothing_else() -> None:
    before, after = (
        python("import sys; print(*sorted(sys.modules))"),
        python("import sys, holdfast; print(*sorted(sys.modules))"),
    )

    assert set(after.split()) - set(before.split()) == {"holdfast"}


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if name != "__version__"])
def test_a_public_name_works_after_nothing_but_import_holdfast(name: str) -> None:
    said = python(
        "import sys, holdfast\n"
        f"found = holdfast.{name}\n"
        "assert found.__doc__ and found.__doc__.strip(), 'it has no docstring'\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'torch was imported'\n"
        f"print({name!r} in dir(holdfast))"
    )

    assert said == "True\n"


def test_the_names_of_2019_are_torchelastics() -> None:
    python(
        "import holdfast\n"
        f"for name in {OF_2019!r}:\n"
        "    assert name not in dir(holdfast) and not hasattr(holdfast, name), name\n"
        "import torchelastic\n"
        "assert callable(torchelastic.train) and not callable(holdfast.train)\n"
    )


def test_help_gives_an_overview_and_every_public_name() -> None:
    text = pydoc.render_doc(holdfast, renderer=pydoc.plaintext)
    overview = text.partition("PACKAGE CONTENTS")[0]

    assert [name for name in holdfast._NAMES if name not in overview] == []
    assert [name for name in holdfast._MODULES if name not in text] == []
    assert holdfast.__version__ in text
    assert "TYPE_CHECKING" not in text
    assert "    Any" not in text


def test_a_type_checker_sees_the_same_names() -> None:
    block = next(node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    typed = {
        (alias.asname, node.module if node.module != "holdfast" else f"holdfast.{alias.name}")
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }

    assert typed == {*holdfast._NAMES.items(), *((name, f"holdfast.{name}") for name in holdfast._MODULES)}


def test_a_name_that_does_not_exist_is_said_as_python_says_it() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'lunch'"):
        holdfast.lunch  # noqa: B018


def test_the_page_of_the_api_is_up_to_date() -> None:
    pytest.importorskip("torch", reason="some of the names need torch")

    assert api_page.page() == api_page.PAGE.read_text(), "run: python tests/api_page.py"


def test_every_public_name_has_a_promise_and_no_address_is_printed() -> None:
    text = api_page.PAGE.read_text()

    assert "(no description)" not in text
    assert " at 0x" not in text
    assert [name for name in (*holdfast._NAMES, *holdfast._MODULES) if f"{name}" not in text] == []


#: Parameters of public signatures that a convention has another word for.
OTHER_WORDS = {
    "timeout_s": "timeout, in seconds or as a timedelta",
    "margin_s": "margin",
    "run": "run_id",
    "runid": "run_id",
}


def test_public_signatures_follow_one_convention() -> None:
    signatures = re.findall(r"^ *- `(.*?)`: ", api_page.PAGE.read_text(), flags=re.MULTILINE)
    parameters = [(signature, name) for signature in signatures for name in re.findall(r"(\w+): ", signature)]

    wrong = [(signature, name) for signature, name in parameters if name in OTHER_WORDS and "run: Run" not in signature]
    assert len(parameters) > 500
    assert [f"{signature}: write {OTHER_WORDS[name]}" for signature, name in wrong] == []


def test_times_are_seconds_or_timedeltas(tmp_path: Path) -> None:
    with holdfast.Checkpointer([holdfast.checkpoint.StorageTier(tmp_path)]) as checkpoints:
        assert checkpoints.wait(timedelta(seconds=1)) is checkpoints.wait(1) is checkpoints.wait() is True
        assert checkpoints.close(timedelta(minutes=1))
    assert holdfast.events.flush_all(timedelta(seconds=1)) is holdfast.events.flush_all(1) is True
    near = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    with holdfast.Notices((), margin=timedelta(hours=2), environ=near) as notices:
        assert notices.pending() is not None
    with holdfast.Notices((), margin=60, environ=near) as notices:
        assert notices.pending() is None
    with pytest.raises(holdfast.errors.UsageError, match="a timeout is zero or more seconds"):
        checkpoints.wait(-1)
