"""Errors by the names that programs for 0.1.0, TorchElastic and TorchX catch."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.compat import errors as old
from tests.compat.conftest import Run


@pytest.mark.parametrize("name", old.__all__)
def test_a_name_of_0_1_0_is_the_class_of_today_and_says_so(name: str) -> None:
    with pytest.warns(DeprecationWarning, match="is now called") as caught:
        found = getattr(errors, name)

    assert found is getattr(old, name)
    assert found is getattr(errors, found.__name__)
    assert caught[0].filename == __file__
    assert str(caught[0].message).startswith(f"holdfast.errors.{name} is")


def test_an_unknown_name_is_unknown() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Lost'"):
        errors.Lost  # noqa: B018


def test_programs_catch_errors_by_the_names_that_they_know(run: Run) -> None:
    run(
        "-c",
        "import holdfast.compat\n"
        "holdfast.compat.install()\n"
        "import torchelastic\n"
        "from torch.distributed.elastic.multiprocessing import SignalException\n"
        "from torch.distributed.elastic.multiprocessing.errors import ChildFailedError\n"
        "from torchx.runner.api import UnknownAppException as unknown\n"
        "from torchx.specs import InvalidRunConfigException, MalformedAppHandleException, UnknownAppException\n"
        "from torchx.specs import UnknownSchedulerException, parse_app_handle\n"
        "from torchx.specs.finder import ComponentNotFoundException, ComponentValidationException, get_component\n"
        "from holdfast import errors\n"
        "assert SignalException is errors.SignalError and unknown is errors.UnknownAppError\n"
        "assert torchelastic.StopException is errors.StopTrainingError\n"
        "assert issubclass(ChildFailedError, errors.JobFailedError)\n"
        "pairs = (parse_app_handle, MalformedAppHandleException), (get_component, ComponentNotFoundException)\n"
        "for function, error in pairs:\n"
        "    try:\n"
        "        function('nothing')\n"
        "    except error:\n"
        "        continue\n"
        "    raise AssertionError(error)\n",
    )
