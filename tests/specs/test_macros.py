"""Macros are filled in where they may stand, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.specs import Resource, Role, macros

VALUES = macros.Values(img_root="/img", app_id="train-1", replica_id="3", rank0_env="RANK0_HOST")


def role(**fields: object) -> Role:
    return Role(name="trainer", image="${app_id}", **fields)  # type: ignore[arg-type]


def test_arguments_environment_values_and_nested_metadata_are_filled_in() -> None:
    filled = VALUES.apply(
        role(
            args=["--id", macros.app_id, f"--root={macros.img_root}/data", "$replica_id"],
            env={"HOST": f"${{{macros.rank0_env}}}", macros.app_id: macros.replica_id},
            metadata={"labels": {"job": macros.app_id, "list": [macros.replica_id, 7, None]}, "n": 1},
        )
    )

    assert filled.args == ["--id", "train-1", "--root=/img/data", "3"]
    assert filled.env == {"HOST": "${RANK0_HOST}", macros.app_id: "3"}
    assert filled.metadata == {"labels": {"job": "train-1", "list": ["3", 7, None]}, "n": 1}


def test_other_fields_are_left_alone() -> None:
    filled = VALUES.apply(role(entrypoint=macros.img_root, port_map={macros.app_id: 1}))

    assert (filled.image, filled.entrypoint, filled.port_map) == ("${app_id}", macros.img_root, {macros.app_id: 1})


def test_what_is_no_macro_survives_and_two_dollars_are_one() -> None:
    text = "$HOME ${OTHER:=x} $$ $${app_id} $1 100$"

    assert VALUES.substitute(text) == "$HOME ${OTHER:=x} $ ${app_id} $1 100$"


def test_the_copy_shares_nothing_with_the_role() -> None:
    original = role(args=["a"], metadata={"x": {"y": ["z"]}}, resource=Resource(1, 0, 1, devices={"d": 1}))

    filled = VALUES.apply(original)
    filled.args.append("b")
    filled.metadata["x"]["y"].append("w")
    filled.resource.devices["d"] = 2

    assert original == role(args=["a"], metadata={"x": {"y": ["z"]}}, resource=Resource(1, 0, 1, devices={"d": 1}))


def test_a_role_of_ones_own_stays_one() -> None:
    @dataclass
    class Mine(Role):
        extra: str = "e"

    filled = VALUES.apply(Mine(name="m", image="i", args=[macros.app_id]))

    assert isinstance(filled, Mine)
    assert (filled.extra, filled.args) == ("e", ["train-1"])
