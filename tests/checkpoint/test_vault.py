"""A neighbour's memory: copies that survive the host that made them."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import Checkpointer, MemoryTier, NeighbourTier
from holdfast.checkpoint.checksums import BLOCK_BYTES, checksum
from holdfast.checkpoint.keys import Entry, Key
from holdfast.checkpoint.slots import Slot, scan
from holdfast.checkpoint.vault import Vault, read_book
from holdfast.checkpoint.vault_messages import CODEC, Begin, Commit, Done, Failed, Put, Read, VaultAddress, name_of
from holdfast.errors import HandshakeError, ShardMissingError, UnavailableError
from holdfast.facts import Fact
from holdfast.store.memory import MemoryStore
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel

np = pytest.importorskip("numpy")

SECRET = b"the secret of this test"
LOOPBACK = Endpoint("127.0.0.1", 0)
PATIENCE_S = 240.0


@pytest.fixture
def vaults(tmp_path: Path) -> Iterator[Callable[..., Vault]]:
    """Open vaults, each with a folder of its own, that are closed at the end."""
    opened: list[Vault] = []

    def start(name: str, host: str | None = None, **options: Any) -> Vault:
        vault = Vault("run", secret=SECRET, folder=tmp_path / name / "run", name=name, host=host or name, **options)
        vault.open(LOOPBACK)
        opened.append(vault)
        return vault

    yield start
    for vault in opened:
        vault.close()


def listed(*found: Vault) -> Callable[[], list[VaultAddress]]:
    return lambda: [VaultAddress(vault.host, vault.name, str(vault.endpoint)) for vault in found]


def tier(me: str, *found: Vault, **options: Any) -> NeighbourTier:
    return NeighbourTier(listed(*found), me, secret=options.pop("secret", SECRET), **options)


def save(to: NeighbourTier, key: Key, data: bytes) -> None:
    to.save(key, memoryview(data), checksum(memoryview(data)))


def read(found: NeighbourTier, entry: Entry) -> bytes:
    shard = found.open(entry)
    return bytes(shard.read(0, shard.nbytes))


def channel(vault: Vault) -> Channel[Any]:
    assert vault.endpoint is not None
    return Channel.connect(vault.endpoint, CODEC, SECRET)


def test_a_state_goes_to_the_neighbour_and_comes_back(vaults: Callable[..., Vault]) -> None:
    ours, theirs = vaults("a"), vaults("b")
    data = secrets.token_bytes(BLOCK_BYTES + 12345)
    key = Key(3, "run.0", 2, 1)
    sender = tier("a", ours, theirs)
    save(sender, key, data)
    sender.close()

    reader = tier("c", ours, theirs)
    (entry,) = reader.entries()

    assert (entry.key, entry.nbytes, entry.place) == (key, len(data), "b")
    assert read(reader, entry) == data
    assert scan(ours.folder) == {}
    reader.close()


def test_two_generations_of_every_shard_are_kept(vaults: Callable[..., Vault]) -> None:
    ours, theirs = vaults("a"), vaults("b")
    sender = tier("a", ours, theirs)
    for step in range(5):
        for shard in (0, 1):
            save(sender, Key(step, "run.0", 2, shard), bytes([step]) * 1000)

    kept = sorted((entry.key.step, entry.key.shard) for entry in sender.entries())
    assert kept == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert len(list(theirs.folder.glob("*.slot"))) == 4
    sender.close()


def test_shards_of_a_larger_world_go_once_they_are_old(vaults: Callable[..., Vault]) -> None:
    ours, theirs = vaults("a"), vaults("b")
    sender = tier("a", ours, theirs)
    save(sender, Key(1, "run.0", 4, 3), b"old")
    for step in (2, 3):
        save(sender, Key(step, "run.1", 2, 0), b"new")

    assert sorted(entry.key.step for entry in sender.entries()) == [2, 3]
    sender.close()


def test_what_was_not_committed_is_not_there(vaults: Callable[..., Vault]) -> None:
    vault = vaults("b")
    key = Key(1, "run.0", 1, 0)
    first = channel(vault)
    assert isinstance(first.ask(Begin(name_of(key), 10)), Done)
    assert isinstance(first.ask(Put(0, b"12345", 3421846044)), Done)
    first.close()

    reader = tier("a", vault)
    assert reader.entries() == []
    save(reader, key, b"whole")
    assert [entry.key for entry in reader.entries()] == [key]
    reader.close()


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Put(0, b"x", 0), "belongs to no state"),
        (Commit(), "no state to commit"),
        (Begin(name_of(Key(1, "r", 1, 0)), -5), "-5 bytes"),
        (Begin(name_of(Key(1, "r", 1, 0)), 1 << 40), "no room"),
        (Read(name_of(Key(1, "r", 1, 0)), 0, 1), "no memory here"),
        (Read(name_of(Key(1, "r", 1, 0)), 5, 1), "at most"),
        (Read(name_of(Key(1, "r", 1, 0)), 0, 1 << 40), "at most"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_question_that_makes_no_sense_is_answered_with_the_reason(
    vaults: Callable[..., Vault], question: Any, reason: str
) -> None:
    line = channel(vaults("b"))

    answer = line.ask(question)

    assert isinstance(answer, Failed)
    assert reason in answer.reason
    line.close()


def test_a_block_that_was_damaged_on_its_way_is_refused(vaults: Callable[..., Vault]) -> None:
    line = channel(vaults("b"))
    line.ask(Begin(name_of(Key(1, "r", 1, 0)), 10))

    answer = line.ask(Put(0, b"12345", 1))

    assert isinstance(answer, Failed)
    assert "damaged" in answer.reason
    line.close()


def test_a_vault_holds_no_more_than_it_was_told_to(vaults: Callable[..., Vault]) -> None:
    small = vaults("b", bytes_max=1000)
    sender = tier("a", small)
    save(sender, Key(1, "r.0", 2, 0), b"x" * 400)

    with pytest.raises(UnavailableError, match="no room for 700 more"):
        save(sender, Key(1, "r.0", 2, 1), b"y" * 700)
    sender.close()


def test_who_does_not_know_the_secret_gets_nothing(vaults: Callable[..., Vault]) -> None:
    vault = vaults("b")
    unproven = tier("a", vault, secret=b"a guess")

    with pytest.raises(UnavailableError, match="0 of 1 copies"):
        save(unproven, Key(1, "r.0", 1, 0), b"x")
    with pytest.raises(HandshakeError):
        Channel.connect(vault.endpoint or LOOPBACK, CODEC, b"a guess")


def test_a_neighbour_that_is_gone_is_passed_over_for_the_next(vaults: Callable[..., Vault]) -> None:
    ours, dead, third = vaults("a"), vaults("b"), vaults("c")
    book = listed(ours, dead, third)()
    dead.close()
    sender = NeighbourTier(lambda: book, "a", secret=SECRET)
    save(sender, Key(1, "r.0", 1, 0), b"x")

    assert [record.key.step for record in scan(third.folder).values()] == [1]
    sender.close()


def test_a_missing_neighbour_for_a_copy_is_reported(vaults: Callable[..., Vault]) -> None:
    ours = vaults("a")

    with pytest.raises(UnavailableError, match="no other vault is there"):
        save(tier("a", ours), Key(1, "r.0", 1, 0), b"x")


def test_a_state_that_its_owner_overwrites_is_gone(vaults: Callable[..., Vault]) -> None:
    """Workers write into the folder of their own vault; what it gives out is never a mixture."""
    vault = vaults("a")
    slot = Slot.create(vault.folder, 100)
    slot.commit(Key(1, "r.0", 1, 0), 100)
    reader = tier("b", vault)
    (entry,) = reader.entries()
    shard = reader.open(entry)
    assert bytes(shard.read(0, 100)) == bytes(100)
    slot.wipe()
    slot.state(100)[:] = b"x" * 100
    slot.commit(Key(2, "r.0", 1, 0), 100)

    with pytest.raises(ShardMissingError):
        shard.read(0, 100)
    reader.close()
    slot.close(remove=True)


def test_vaults_find_each_other_through_the_store(vaults: Callable[..., Vault]) -> None:
    ours, theirs = vaults("a"), vaults("b")
    store = MemoryStore()
    ours.announce(store, "10.0.0.1")
    theirs.announce(store, "fd00::2")
    ports = [vault.endpoint.port for vault in (ours, theirs) if vault.endpoint]

    assert read_book(store) == [
        VaultAddress("a", "a", f"10.0.0.1:{ports[0]}"),
        VaultAddress("b", "b", f"[fd00::2]:{ports[1]}"),
    ]
    theirs.close(store)
    assert [vault.name for vault in read_book(store)] == ["a"]
    assert not theirs.folder.exists()


def test_workers_are_told_where_their_vault_is(vaults: Callable[..., Vault]) -> None:
    vault = vaults("a")

    assert vault.environ() == {"HOLDFAST_MEMORY_DIR": str(vault.folder), "HOLDFAST_VAULT": "a"}


# -- whole hosts, as processes -----------------------------------------------------------------------------------------

#: A host: its vault, and a worker that saves there and to the neighbour's.
HOST = """
import json, sys
from pathlib import Path
import numpy as np
from holdfast.checkpoint import Checkpointer, MemoryTier, NeighbourTier, Vault
from holdfast.checkpoint.vault_messages import VaultAddress
from holdfast.wire.address import Endpoint

folder, name, rank, secret = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].encode()
vault = Vault("run", secret=secret, folder=Path(folder) / name / "run", name=name, host=name)
print(vault.open(Endpoint("127.0.0.1", 0)), flush=True)
book = [VaultAddress(*one) for one in json.loads(sys.stdin.readline())]
tiers = [MemoryTier(vault.folder, place=name), NeighbourTier(lambda: book, name, secret=secret)]
checkpoints = Checkpointer(tiers, origin="run.0")
while line := sys.stdin.readline():
    step = int(line)
    checkpoints.save(step, {"w": np.full(2_000_000, 100 * step + rank)}, shard=(rank, 2))
    checkpoints.wait()
    print(step, flush=True)
checkpoints.close()
vault.close()
"""


def test_a_lost_hosts_state_is_taken_from_its_neighbours_memory(
    tmp_path: Path, child: Callable[..., Any], told: list[Fact]
) -> None:
    secret = secrets.token_hex(8)
    hosts = {name: child(HOST, tmp_path, name, rank, secret) for rank, name in enumerate("ab")}
    addresses = {name: host.heard() for name, host in hosts.items()}
    book = [VaultAddress(name, name, address) for name, address in addresses.items()]
    for host in hosts.values():
        host.tell(json.dumps([[one.host, one.name, one.address] for one in book]))
    for step in (1, 2, 3):
        for host in hosts.values():
            host.tell(str(step))
        for host in hosts.values():
            host.heard(expect=str(step))
    hosts["a"].kill()
    shutil.rmtree(tmp_path / "a")  # its memory went with it

    # A replacement without any state of its own reads the lost shard; no other worker is needed.
    tiers = [MemoryTier(tmp_path / "new", place="new"), NeighbourTier(lambda: book, "new", secret=secret.encode())]
    found = {}
    for rank in (0, 1):
        checkpoints = Checkpointer(tiers, gather=lambda data: [data])
        entries = [entry for each in tiers for entry in each.entries()]
        checkpoints._inventory = lambda *_, entries=entries: entries  # type: ignore[method-assign]
        restored = checkpoints.restore(shard=(rank, 2))
        assert restored is not None
        found[rank] = (restored.step, int(restored.tree["w"][0]), restored.data["from"])

    assert found == {0: (3, 300, ["neighbour"]), 1: (3, 301, ["neighbour"])}
    for each in tiers:
        each.close()
    assert hosts["b"].end() == 0
    assert not (tmp_path / "b" / "run").exists()
    assert "vault_unreachable" in [fact.kind for fact in told]


def test_a_worker_that_lands_beside_the_copy_maps_it(tmp_path: Path, vaults: Callable[..., Vault]) -> None:
    lost, neighbour = vaults("a"), vaults("b")
    sender = tier("a", lost, neighbour)
    with Checkpointer([sender]) as checkpoints:
        checkpoints.save(5, {"w": np.arange(1000)})
    lost.close()

    with Checkpointer([MemoryTier(neighbour.folder, place="b")]) as checkpoints:
        found = checkpoints.restore()

    assert found is not None
    assert found.data["from"] == ["memory"]
    np.testing.assert_array_equal(found.tree["w"], np.arange(1000))


def test_a_vault_that_failed_is_left_alone_for_a_while(vaults: Callable[..., Vault]) -> None:
    ours, dead = vaults("a"), vaults("b")
    book = listed(ours, dead)()
    dead.close()
    sender = NeighbourTier(lambda: book, "a", secret=SECRET)

    with pytest.raises(UnavailableError, match="cannot reach"):
        save(sender, Key(1, "r.0", 1, 0), b"x")
    with pytest.raises(UnavailableError, match="b: failed a moment ago"):
        save(sender, Key(2, "r.0", 1, 0), b"x")
