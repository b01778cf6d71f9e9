"""Records on disk: one that cannot be read is left out and told."""

from pathlib import Path

import pytest

from holdfast.coordinator.records import RecordFolder
from holdfast.coordinator.state import RunRecord


@pytest.mark.parametrize("damage", [b"", b"{", b'{"closed": "\xff"}', b'{"closed": "\\ud800"}', b"[]"])
def test_a_damaged_record_does_not_keep_a_coordinator_from_starting(tmp_path: Path, damage: bytes) -> None:
    folder = RecordFolder(tmp_path)
    record = RunRecord(last_number=3)
    folder.save("whole", record)
    folder.save("damaged", record)
    [damaged] = [path for path in tmp_path.iterdir() if path.name.startswith("damaged")]
    damaged.write_bytes(damage)

    assert folder.load() == {"whole": record}
