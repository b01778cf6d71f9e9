"""What every tier of checkpoints must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", tier_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_tier)

`make()` returns a tier without shards, and `make()` called again another object that sees the same ones, as the worker
of another shard or one that is started again does. A tier keeps at least the two newest steps of each shard. A case
fails with an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.checksums import BLOCK_BYTES, checksum
from holdfast.checkpoint.keys import Entry, Key
from holdfast.checkpoint.tier import Tier
from holdfast.errors import CorruptShardError, ShardMissingError
from holdfast.testing.cases import Cases

Make = Callable[[], Tier]
Case = Callable[[Make], None]

_case: Cases[Case] = Cases()


def tier_cases() -> list[Case]:
    """Return every case, in a fixed order."""
    return _case.all()


def _key(step: int, shard: int = 0, world: int = 2, origin: str = "run.1") -> Key:
    return Key(step, origin, world, shard)


def _save(tier: Tier, key: Key, state: bytes) -> None:
    tier.save(key, memoryview(state), checksum(memoryview(state)))


def _entry(tier: Tier, key: Key) -> Entry:
    found = [each for each in tier.entries() if each.key == key]
    assert found, f"{key} is not listed"
    return found[0]


def _read(tier: Tier, key: Key) -> bytes:
    shard = tier.open(_entry(tier, key))
    data = shard.read(0, shard.nbytes)
    shard.close()
    return bytes(data)


@_case
def it_says_what_it_is(make: Make) -> None:
    """Its name stands in facts and metrics, and `every` is a number of steps."""
    tier = make()

    assert isinstance(tier.name, str)
    assert tier.name
    assert tier.every >= 1
    assert tier.entries() == []
    tier.close()


@_case
def a_shard_comes_back_as_it_was_saved(make: Make) -> None:
    """Whole or in part, by the same object and by another one."""
    state = bytes(range(256)) * 40
    writer, reader = make(), make()
    _save(writer, _key(7), state)

    entry = _entry(reader, _key(7))
    assert (entry.nbytes, entry.tier) == (len(state), reader.name)
    for tier in (writer, reader):
        shard = tier.open(_entry(tier, _key(7)))
        assert shard.nbytes == len(state)
        assert bytes(shard.read(0, len(state))) == state
        assert bytes(shard.read(100, 300)) == state[100:300]
        kept = shard.read(5, 9)
        shard.close()
        assert bytes(kept) == state[5:9]
    writer.close()
    reader.close()


@_case
def a_state_of_several_blocks_comes_back(make: Make) -> None:
    """Also where it ends in the middle of one, and a part that lies across two."""
    state = bytes(BLOCK_BYTES) + b"\x01" * 1001
    tier = make()
    _save(tier, _key(1), state)

    shard = tier.open(_entry(tier, _key(1)))
    assert bytes(shard.read(BLOCK_BYTES - 3, BLOCK_BYTES + 3)) == b"\0\0\0\x01\x01\x01"
    assert bytes(shard.read(0, shard.nbytes)) == state
    shard.close()
    tier.close()


@_case
def shards_and_origins_do_not_mix(make: Make) -> None:
    """The same step of two workers, and of two rounds, are four things."""
    keys = [_key(3, shard, origin=origin) for shard in (0, 1) for origin in ("run.1", "run.2")]
    tiers = {shard: make() for shard in (0, 1)}
    for key in keys:
        _save(tiers[key.shard], key, repr(key).encode())

    reader = make()
    assert sorted({each.key for each in reader.entries()}) == sorted(keys)
    assert [_read(reader, key) for key in keys] == [repr(key).encode() for key in keys]
    for tier in (*tiers.values(), reader):
        tier.close()


@_case
def the_two_newest_steps_stay(make: Make) -> None:
    """However many were saved before."""
    tier = make()
    for step in range(1, 7):
        _save(tier, _key(step), b"%d" % step)

    steps = {each.key.step for each in tier.entries()}
    assert {5, 6} <= steps
    assert [_read(tier, _key(step)) for step in (5, 6)] == [b"5", b"6"]
    tier.close()


@_case
def a_shard_that_is_saved_again_is_the_new_one(make: Make) -> None:
    """The same key twice is one entry."""
    tier = make()
    _save(tier, _key(2), b"first")
    _save(tier, _key(2), b"second one")

    assert [each.key for each in tier.entries()] == [_key(2)]
    assert _read(tier, _key(2)) == b"second one"
    tier.close()


@_case
def what_is_dropped_is_gone(make: Make) -> None:
    """And dropping what is not there does nothing."""
    tier = make()
    _save(tier, _key(1), b"one")
    _save(tier, _key(2), b"two")
    entry = _entry(tier, _key(1))
    tier.drop(_key(1))
    tier.drop(_key(1))
    tier.drop(_key(9))

    assert [each.key for each in tier.entries()] == [_key(2)]
    try:
        shard = tier.open(entry)
        data = bytes(shard.read(0, shard.nbytes))
    except (ShardMissingError, CorruptShardError):
        pass
    else:
        raise AssertionError(f"a dropped shard was read: {data!r}")
    tier.close()


@_case
def what_was_saved_outlives_the_object(make: Make) -> None:
    """A worker that is started again finds it."""
    first = make()
    _save(first, _key(4), b"state")
    first.close()

    second = make()
    assert _read(second, _key(4)) == b"state"
    second.close()
