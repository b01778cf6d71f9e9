"""What the benches print: every case with its target, the ones we miss like the ones we meet."""

import json

from bench.harness import Case, Results, attempt, describe_machine, load, save, spread

MET = Case.at_most("fast", 0.25, "s", 1.0)
MISSED = Case.at_most("slow", 2.0, "s", 1.0)


def test_a_limit_is_met_up_to_its_last_digit():
    assert Case.at_most("edge", 1.0, "s", 1.0).ok is True
    assert MISSED.ok is False
    assert MISSED.target == "≤ 1 s"


def test_a_ratio_says_how_many_times_better_ours_is():
    faster = Case.beside("seconds", 0.5, 10.0, "s", less_is_better=True, ratio_min=20)
    more = Case.beside("rate", 50.0, 100.0, "/s", less_is_better=False, ratio_min=1)

    assert (faster.ratio, faster.ok) == (20.0, True)
    assert (more.ratio, more.ok) == (0.5, False)


def test_a_rival_that_did_not_finish_leaves_no_ratio_and_no_verdict():
    alone = Case.beside("seconds", 0.5, None, "s", less_is_better=True, ratio_min=20, note="it did not finish")

    assert (alone.ratio, alone.ok) == (None, None)


def test_a_missed_target_stands_in_the_table_like_the_others():
    results = Results("speed", [MET, MISSED], about=describe_machine())
    text = str(results)

    assert not results.ok
    assert "pass" in next(line for line in text.splitlines() if line.startswith("fast"))
    assert "MISS" in next(line for line in text.splitlines() if line.startswith("slow"))


def test_saving_keeps_the_figures_of_benches_that_were_not_run(tmp_path):
    path = tmp_path / "results.json"
    save(path, {"one": Results("one", [MET])})
    save(path, {"two": Results("two", [MISSED])})
    saved = json.loads(path.read_text())

    assert list(saved) == ["one", "two"]
    assert saved["one"]["cases"][0]["ours"] == 0.25
    assert saved["two"]["cases"][0]["ok"] is False
    assert "cores" in saved["one"]["about"]


def test_repeats_are_told_with_their_spread():
    assert spread([1.0, 3.0, 2.0], "s") == "3 runs, 1 to 3 s"


def test_what_was_saved_is_loaded_as_it_was(tmp_path):
    path = tmp_path / "results.json"
    results = Results("one", [MET, MISSED, Case.missing("rival", "it is away")], "rival", data={"steps": [1, 2]})
    save(path, {"one": results})

    assert load(path) == {"one": results}
    assert load(tmp_path / "none.json") == {}


def test_a_part_that_fails_keeps_what_it_came_to_and_says_why_it_failed(capsys):
    def part():
        yield MET
        raise RuntimeError("the rival fell over\nand lay there")

    kept, failed = attempt("the second half", part)

    assert kept == MET
    assert (failed.name, failed.ok, failed.note) == ("the second half", False, "RuntimeError: the rival fell over")
    assert "Traceback" in capsys.readouterr().err


def test_what_is_left_out_is_no_miss():
    missing = Case.missing("rival==1", "it cannot be installed here")

    assert missing.is_missing
    assert Results("alone", [MET, missing]).ok
    assert not MET.is_missing
    assert not MISSED.is_missing


def test_we_are_behind_where_the_rival_is_better():
    assert Case.beside("rate", 50.0, 100.0, "/s", less_is_better=False).is_behind
    assert not Case.beside("rate", 100.0, 100.0, "/s", less_is_better=False).is_behind
    assert not MET.is_behind
