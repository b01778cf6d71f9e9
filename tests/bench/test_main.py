"""`python -m bench`: one bench that fails costs only itself, and whatever happens there is a report."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.harness import load

from bench import __main__ as main

BENCH = Path(main.__file__).parent

GOOD = """
from bench.harness import Case, Results

def run(full):
    return Results("all is well", [Case.at_most("speed", 1.0, "s", 2.0), Case.seen("full", int(full), "")])
"""
RAISES = "def run(full):\n    raise RuntimeError('the rival fell over')\n"
VANISHES = "import os\n\ndef run(full):\n    os._exit(3)\n"
NEEDY = "NEEDS = ('no_such_package',)\n\ndef run(full):\n    raise AssertionError('not to be run')\n"
HANGS = """
import time
from pathlib import Path

def run(full):
    try:
        print("hanging", flush=True)
        time.sleep(3600)
    finally:
        Path("tidied").touch()
"""


@pytest.fixture
def make_command(tmp_path):
    """Make a package of our own benches; returns the command that runs them."""

    def make(benches, *arguments):
        package = tmp_path / "bench"
        package.mkdir()
        for path in [*BENCH.glob("_*.py"), BENCH / "harness.py"]:
            shutil.copy(path, package)
        for name, text in benches.items():
            (package / f"{name}.py").write_text(text)
        return [sys.executable, "-m", "bench", "--json", str(tmp_path / "results.json"), *arguments]

    return make


@pytest.fixture
def run_bench(make_command, tmp_path):
    """Run `python -m bench` over our own benches."""

    def run(benches, *arguments):
        command = make_command(benches, *arguments)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        return done, load(tmp_path / "results.json"), page_of(tmp_path)

    return run


def page_of(folder):
    page = folder / "BENCHMARKS.md"
    return page.read_text() if page.exists() else ""


def test_a_bench_that_fails_costs_only_itself(run_bench):
    done, results, page = run_bench({"a_raises": RAISES, "b_vanishes": VANISHES, "c_good": GOOD, "d_needy": NEEDY})

    assert done.returncode == 1, done.stderr
    assert list(results) == ["a_raises", "b_vanishes", "c_good", "d_needy"]
    assert [each.ok for each in results.values()] == [False, False, True, True]
    assert "exit code 3" in results["b_vanishes"].cases[0].note
    assert results["c_good"].cases[0].ours == 1.0
    assert "the rival fell over" in done.stderr
    assert "[4/4] d_needy" in done.stdout
    assert "- d_needy: d_needy: left out: no_such_package is not installed" in page
    assert "**missed** | it ended with exit code 3 and without figures |" in page


def test_a_bench_that_hangs_is_ended(run_bench):
    done, results, _ = run_bench({"hangs": HANGS, "good": GOOD}, "hangs", "--cap", "3")

    assert done.returncode == 1, done.stderr
    assert [case.note for case in results["hangs"].cases] == ["it did not end within 3 s"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_tells_what_it_has_and_leaves_nothing_running(make_command, tmp_path, how):
    command = make_command({"a_good": GOOD, "b_hangs": HANGS})
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert "hanging\n" in iter(process.stdout.readline, "")
        process.send_signal(how)
        code = process.wait(240)

    assert code == 130
    assert list(load(tmp_path / "results.json")) == ["a_good"]
    assert "## a_good" in page_of(tmp_path)
    assert (tmp_path / "tidied").exists()


def test_the_machine_is_described_as_it_was_before_the_bench(run_bench):
    done, results, page = run_bench({"good": GOOD}, "--full")

    assert done.returncode == 0, done.stderr
    assert {"busy_percent", "load_1m", "took_s", "cores", "cpu", "torch"} <= set(results["good"].about)
    assert results["good"].cases[1].ours == 1
    assert "every target was met" in done.stdout
    assert "% busy" in page


def test_an_unknown_bench_is_named_with_those_that_there_are(run_bench):
    done, results, _ = run_bench({"good": GOOD}, "godo")

    assert done.returncode == 2
    assert "no bench is called godo; there are good" in done.stderr
    assert not results


def test_every_bench_is_found_and_no_helper_is():
    names = main.find_benches()

    assert {"checkpoint", "cli", "garbage", "inprocess", "launch", "local_jobs", "observe"} <= set(names)
    assert {"recovery", "rendezvous", "store", "timeline"} <= set(names)
    assert not any(name.startswith("_") or name in ("harness", "health_probe") for name in names)
