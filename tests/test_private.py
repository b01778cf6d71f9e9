"""Folders of one user where every user may write: an attacker who was there first gains nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint import MemoryTier, memory
from holdfast.checkpoint.checksums import Checksums
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.slots import Slot
from holdfast.checkpoint.vault import Vault
from holdfast.errors import UsageError
from holdfast.private import PrivateFolder, find_private, make_private, own_folder, user_folder_name
from holdfast.timer import beats
from holdfast.timer.beats import BeatBook
from holdfast.wire.address import Endpoint
from holdfast.workers import default_log_dir

OTHER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
NAME = user_folder_name()
KEY = Key(1, "run.0", 1, 0)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A place like /tmp: every user may make things, and rename only their own."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    return place


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of this user with old folders in it, such as a home."""
    home = tmp_path / "home"
    for name in ("thesis", "photos", "empty"):
        (home / name).mkdir(parents=True, mode=0o700)
    (home / "thesis" / "final.tex").write_text("years of work")
    (home / "photos" / "old.slot").write_text("a file that is called like one of ours")
    (home / "photos" / "cat.jpg").write_text("cat")
    home.chmod(0o700)
    for path in [*home.rglob("*"), home]:
        os.utime(path, (1, 1))
    return home


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def plant_link(shared: Path, victim: Path) -> None:
    (shared / NAME).symlink_to(victim)


def plant_open_folder(shared: Path, _: Path) -> None:
    (shared / NAME).mkdir()
    (shared / NAME).chmod(0o777)


def plant_file(shared: Path, _: Path) -> None:
    (shared / NAME).write_text("")


def plant_others_folder(shared: Path, _: Path) -> None:
    (shared / NAME).mkdir(mode=0o755)
    os.chown(shared / NAME, OTHER, OTHER)


PLANTS = [plant_link, plant_open_folder, plant_file, pytest.param(plant_others_folder, marks=needs_root)]
Plant = Callable[[Path, Path], None]


def test_folders_are_made_for_this_user_alone_whatever_the_umask(shared: Path) -> None:
    before = os.umask(0)
    try:
        with make_private(shared, NAME, "run") as folder:
            modes = [path.stat().st_mode & 0o777 for path in (folder.path, folder.path.parent)]
    finally:
        os.umask(before)

    assert modes == [0o700, 0o700]
    assert folder.path == shared / NAME / "run"


@pytest.mark.parametrize("plant", PLANTS)
def test_what_another_user_has_put_there_is_refused(shared: Path, victim: Path, plant: Plant) -> None:
    plant(shared, victim)

    with pytest.raises(UsageError):
        make_private(shared, NAME)
    with pytest.raises(UsageError):
        make_private(shared, NAME, "thesis")
    with pytest.raises(UsageError):
        find_private(shared, NAME)


@pytest.mark.parametrize("plant", PLANTS)
def test_the_folder_inside_is_looked_at_too(shared: Path, victim: Path, plant: Plant) -> None:
    make_private(shared, NAME).close()
    inner = shared / NAME / "inner"
    inner.mkdir(mode=0o1777)
    inner.chmod(0o1777)
    plant(inner, victim)

    with pytest.raises(UsageError):
        make_private(inner, NAME)


def test_a_place_without_the_sticky_bit_is_refused(shared: Path) -> None:
    shared.chmod(0o777)

    with pytest.raises(UsageError, match="chmod"):
        make_private(shared, NAME)


@needs_root
def test_a_place_of_another_user_is_refused(shared: Path) -> None:
    os.chown(shared, OTHER, OTHER)

    with pytest.raises(UsageError, match="belongs to another user"):
        make_private(shared, NAME)


def test_a_folder_that_a_user_has_named_may_be_readable_but_not_writable_by_others(tmp_path: Path) -> None:
    (tmp_path / "read").mkdir(mode=0o755)
    found = own_folder(tmp_path / "read")
    assert found is not None
    found.close()
    (tmp_path / "read").chmod(0o775)
    with pytest.raises(UsageError, match="chmod"):
        own_folder(tmp_path / "read")
    (tmp_path / "link").symlink_to(tmp_path / "read")
    with pytest.raises(UsageError, match="not a folder but a link"):
        own_folder(tmp_path / "link")
    assert own_folder(tmp_path / "missing") is None


def test_a_folder_that_is_swapped_after_the_check_makes_no_difference(shared: Path, victim: Path) -> None:
    before = content(victim)
    with make_private(shared, NAME) as folder:
        (folder.path / "ours").mkdir(mode=0o700)
        # What an attacker could do in a place without the sticky bit, at the worst moment.
        (shared / NAME).rename(shared / "away")
        (shared / NAME).symlink_to(victim)

        assert folder.names() == ["ours"]
        folder.remove_tree("thesis")
        folder.remove_tree("ours")
        folder.unlink("photos")
        os.close(folder.file("new", os.O_RDWR | os.O_CREAT))
        with pytest.raises(FileNotFoundError):
            folder.folder("photos")

    assert content(victim) == before
    assert [path.name for path in (shared / "away").iterdir()] == ["new"]


def test_links_in_a_folder_are_removed_and_not_followed(shared: Path, victim: Path) -> None:
    before = content(victim)
    with make_private(shared, NAME) as folder:
        (folder.path / "run").mkdir()
        (folder.path / "run" / "link").symlink_to(victim)
        (folder.path / "link").symlink_to(victim)
        (folder.path / "file").symlink_to(victim / "thesis" / "final.tex")
        folder.remove_tree("run")
        folder.remove_tree("link")
        with pytest.raises(OSError, match="symbolic links"):
            folder.file("file", os.O_RDWR)

        assert folder.names() == ["file", "link"]
    assert content(victim) == before


# -- states in memory --------------------------------------------------------------------------------------------------


@pytest.fixture
def in_memory(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "_SHARED_MEMORY", shared)
    return shared


def old_run(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True)
    slot = Slot.create(folder, 10)
    slot.commit(KEY, 10)
    slot.close(remove=False)
    for path in (slot.path, folder):
        os.utime(path, (1, 1))
    return folder


@pytest.mark.parametrize("plant", PLANTS)
def test_a_vault_neither_sweeps_nor_uses_what_another_user_has_put_there(
    in_memory: Path, victim: Path, plant: Plant
) -> None:
    plant(in_memory, victim)
    before = content(victim)
    vault = Vault("run", secret=b"x" * 32)

    with pytest.raises(UsageError):
        vault.open(Endpoint("127.0.0.1", 0))
    vault.close()

    assert content(victim) == before


def test_a_sweep_removes_only_folders_that_hold_nothing_but_slots(in_memory: Path, victim: Path) -> None:
    root = make_private(in_memory, NAME).path
    old_run(root / "dead")
    (root / "link").symlink_to(victim)
    (victim / "empty").rename(root / "empty")
    for name in ("thesis", "photos"):
        (victim / name).rename(root / name)

    removed = memory.sweep(root)

    assert [path.name for path in removed] == ["dead", "empty"]
    assert content(root) == ["link", "photos", "photos/cat.jpg", "photos/old.slot", "thesis", "thesis/final.tex"]


def test_a_root_that_is_swapped_in_the_middle_of_a_sweep_costs_the_victim_nothing(
    in_memory: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_private(in_memory, NAME).path
    old_run(root / "photos")
    (victim / "photos" / "cat.jpg").unlink()
    os.utime(victim / "photos", (1, 1))
    before = content(victim)
    names = PrivateFolder.names

    def swap(folder: PrivateFolder) -> list[str]:
        found = names(folder)
        if folder.path == root and not root.is_symlink():
            root.rename(in_memory / "away")
            root.symlink_to(victim)
        return found

    monkeypatch.setattr(PrivateFolder, "names", swap)
    memory.sweep(root)

    assert content(victim) == before
    assert content(in_memory / "away") == []


def test_a_folder_that_an_agent_or_a_worker_holds_is_not_swept(in_memory: Path) -> None:
    vault = Vault("empty", secret=b"x" * 32)
    vault.open(Endpoint("127.0.0.1", 0))
    tier = MemoryTier(memory.run_folder("tier"))
    tier.save(KEY, memoryview(b"x"), Checksums(0, ()))
    for path in [*(in_memory / NAME).rglob("*")]:
        os.utime(path, (1, 1))

    assert memory.sweep(in_memory / NAME) == []
    tier.close()
    assert [path.name for path in memory.sweep(in_memory / NAME)] == ["tier"]
    vault.close()
    assert content(in_memory) == []


def test_what_is_removed_at_the_end_of_a_run_are_slots_and_nothing_else(in_memory: Path, victim: Path) -> None:
    folder = old_run(memory.run_folder("run"))
    folder.parent.chmod(0o700)
    (folder / "notes.txt").write_text("the user's own")
    memory.remove_folder(folder)
    assert content(folder) == ["notes.txt"]

    (folder / "notes.txt").unlink()
    folder.rmdir()
    folder.symlink_to(victim)
    before = content(victim)
    memory.remove_folder(folder)
    assert content(victim) == before


@needs_root
def test_states_that_another_user_has_planted_are_not_restored(in_memory: Path) -> None:
    folder = old_run(memory.run_folder("run"))
    for path in (folder.parent, folder, *folder.iterdir()):
        os.chown(path, OTHER, OTHER)
        path.chmod(0o755)

    with pytest.raises(UsageError, match="belongs to another user"):
        MemoryTier(folder).entries()
    os.chown(folder.parent, 0, 0)
    folder.parent.chmod(0o700)
    with pytest.raises(UsageError, match="belongs to another user"):
        MemoryTier(folder).entries()


def test_a_slot_that_is_a_link_is_no_slot(in_memory: Path, tmp_path: Path) -> None:
    elsewhere = old_run(tmp_path / "elsewhere")
    (slot,) = elsewhere.iterdir()
    with memory.make_folder(memory.run_folder("run")) as folder:
        (folder.path / slot.name).symlink_to(slot)

        assert MemoryTier(folder.path).entries() == []
        assert Slot.take_over(folder.path / slot.name) is None


#: Acts as another user: tries to get at what we keep, and says what worked.
ATTACKER = """
exec 2>&-
mv "$1/$2" "$1/mine" && echo renamed
rmdir "$1/$2" && echo removed
ls "$1/$2" && echo listed
touch "$1/$2/planted" && echo planted
chmod 777 "$1/$2" && echo opened
cat "$1/$2"/run/*.slot && echo read
touch "$1/attacker" && rm "$1/attacker" && echo done
"""


@needs_root
def test_another_user_gets_nowhere(in_memory: Path, tmp_path: Path) -> None:
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid() and not each.stat().st_mode & 0o001:
            each.chmod(each.stat().st_mode | 0o011)
    tier = MemoryTier(memory.run_folder("run"))
    tier.save(KEY, memoryview(b"x"), Checksums(0, ()))

    done = subprocess.run(
        ["/bin/sh", "-c", ATTACKER, "sh", str(in_memory), NAME],
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        cwd="/",
        check=False,
        capture_output=True,
        text=True,
    )
    tier.clear()

    assert done.stdout.split() == ["done"]


# -- log folders and heartbeats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", PLANTS)
def test_log_folders_go_elsewhere_where_another_user_was_first(
    shared: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setattr(default_log_dir, "RUNS_KEPT_MAX", 1)
    plant(shared, victim)
    before = content(victim)

    made = []
    for _ in range(3):
        path, held = default_log_dir.make_folder("run_")
        os.close(held)
        made.append(Path(path))

    assert content(victim) == before
    assert all(path.parent.stat().st_mode & 0o777 == 0o700 and path.parent.name != NAME for path in made)


@pytest.mark.parametrize("plant", PLANTS)
def test_heartbeats_go_elsewhere_where_another_user_was_first(
    shared: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    monkeypatch.setattr(beats, "_MEMORY", shared)
    plant(shared, victim)
    before = content(victim)

    book = BeatBook(2)
    where = Path(book.path).parent
    assert where.name != NAME
    assert where.stat().st_mode & 0o777 == 0o700
    book.close()

    assert not where.exists()
    assert content(victim) == before


#: Keeps a heartbeat file until it is told to go on.
KEEPER = """
import sys
from pathlib import Path
from holdfast.timer import beats
beats._MEMORY = Path(sys.argv[1])
book = beats.BeatBook(1)
print(book.path, flush=True)
sys.stdin.read()
"""


def keeper(place: Path, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", KEEPER, str(place)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        process.wait()
        pytest.skip("this machine has no namespaces for us")
    return Path(line)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def test_the_heartbeat_file_of_a_killed_agent_is_swept_and_that_of_a_live_one_is_not(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beats, "_MEMORY", shared)
    live, dead = keeper(shared), keeper(shared)
    kept, left = heard(live), heard(dead)
    end(dead)

    book = BeatBook(1)
    found = kept.exists(), left.exists()
    book.close()
    end(live)
    BeatBook(1).close()

    assert found == (True, False)
    assert content(shared) == []


@needs_root
def test_the_heartbeat_file_of_an_agent_in_another_pid_namespace_is_not_swept(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process id means nothing here: another container's agent may have any."""
    monkeypatch.setattr(beats, "_MEMORY", shared)
    outside = keeper(shared)
    kept = heard(outside)
    inside = keeper(shared, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    both = heard(inside)

    assert kept.exists()
    book = BeatBook(1)
    assert both.exists()
    book.close()
    end(inside)
    end(outside)


def test_a_file_that_is_swept_before_it_is_locked_is_made_again(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "_MEMORY", shared)
    make = PrivateFolder.file
    made: list[str] = []

    def swept(folder: PrivateFolder, name: str, flags: int) -> int:
        descriptor = make(folder, name, flags)
        if flags & os.O_CREAT:
            made.append(name)
            if len(made) == 1:
                beats.sweep(folder)
        return descriptor

    monkeypatch.setattr(PrivateFolder, "file", swept)
    book = BeatBook(1)

    assert len(made) == 2
    assert Path(book.path).name == made[1]
    assert Path(book.path).exists()
    book.close()
