"""Which cluster a job is on, where that is not the default one: remembered on this machine.

<state folder>/kubernetes/<session>/<app id>.json
"""

from __future__ import annotations

from pathlib import Path

from holdfast.filenames import file_name
from holdfast.home import make_folders
from holdfast.schedulers.local.folders import read_record, write_json


class Whereabouts:
    """The jobs of one session that were submitted with a kubeconfig or a context of their own."""

    def __init__(self, state_folder: Path, session: str) -> None:
        self._folder = state_folder.absolute() / "kubernetes" / file_name(session)

    def remember(self, app_id: str, kubeconfig: str, context: str) -> None:
        """Note where a job is."""
        make_folders(self._folder)
        write_json(self._path(app_id), {"kubeconfig": kubeconfig, "context": context})

    def of(self, app_id: str) -> tuple[str, str]:
        """Return the kubeconfig and the context of a job; both are empty for the default ones."""
        found = read_record(self._path(app_id), dict) or {}
        return str(found.get("kubeconfig", "")), str(found.get("context", ""))

    def forget(self, app_id: str) -> None:
        """Drop what was noted."""
        self._path(app_id).unlink(missing_ok=True)

    def _path(self, app_id: str) -> Path:
        return self._folder / f"{file_name(app_id)}.json"
