"""The interface of a tracker, and a run as its own program sees it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from holdfast import plugins
from holdfast.facts import facts

ENV_TORCHX_TRACKERS = "TORCHX_TRACKERS"
ENV_TORCHX_PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
ENV_TORCHX_JOB_ID = "TORCHX_JOB_ID"

#: The id of a run that was not submitted.
UNDEFINED = "<UNDEFINED>"
GROUPS = ("holdfast.tracker", "torchx.tracker")


@dataclass
class TrackerSource:
    """A source of a run: another run, or anything with a name, and which artifact of it."""

    source_run_id: str
    artifact_name: str | None


@dataclass
class TrackerArtifact:
    """Something that a run made, and where it is."""

    name: str
    path: str
    metadata: Mapping[str, object] | None


@dataclass
class Lineage:
    """The sources of a run, and the runs that were made from it."""

    sources: list[TrackerSource] = field(default_factory=list)
    descendants: list[str] = field(default_factory=list)


class TrackerBase(ABC):
    """Stores data of runs; a plugin registers a factory `(config: str | None) -> TrackerBase`."""

    @abstractmethod
    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Store the path of an artifact of a run."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run, by name."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Store metadata of a run."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the metadata of a run."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Store that a run was made from another, or from one of its artifacts."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return the sources of a run, or only those with that artifact."""

    @abstractmethod
    def lineage(self, run_id: str) -> Lineage:
        """Return the sources of a run, and the runs that were made from it."""

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the known runs, or those that match the tracker's own filters."""


@dataclass
class AppRunTrackableSource:
    """The run that another was made from, and which artifact of it."""

    parent: AppRun
    artifact_name: str | None


@dataclass
class AppRun:
    """One run: data go to every tracker, and are read from the first."""

    id: str
    backends: Iterable[TrackerBase]

    @staticmethod
    @lru_cache(maxsize=1)
    def run_from_env() -> AppRun:
        """Return this process's run, from its environment; without trackers there, data are dropped."""
        run_id = os.environ.get(ENV_TORCHX_JOB_ID, UNDEFINED)
        trackers = list(trackers_from_environ())
        parent = os.environ.get(ENV_TORCHX_PARENT_RUN_ID)
        if parent:
            for tracker in trackers:
                tracker.add_source(run_id, parent, artifact_name=None)
        return AppRun(run_id, trackers)

    def job_id(self) -> str:
        """Return the run's id: the handle of its job."""
        return self.id

    def add_metadata(self, **kwargs: object) -> None:
        """Store metadata of this run."""
        for backend in self.backends:
            backend.add_metadata(self.id, **kwargs)

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Store the path of an artifact of this run."""
        for backend in self.backends:
            backend.add_artifact(self.id, name, path, metadata)

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Store that this run was made from another, or from one of its artifacts."""
        for backend in self.backends:
            backend.add_source(self.id, source_id, artifact_name)

    def sources(self) -> Iterable[AppRunTrackableSource]:
        """Return the sources of this run."""
        first = next(iter(self.backends), None)
        found = first.sources(self.id) if first is not None else ()
        return [
            AppRunTrackableSource(AppRun(source.source_run_id, self.backends), source.artifact_name) for source in found
        ]

    def children(self) -> Iterable[AppRun]:
        """Return the runs that were made from this one."""
        first = next(iter(self.backends), None)
        found = first.lineage(self.id).descendants if first is not None else ()
        return [AppRun(each, self.backends) for each in found]


def tracker_config_env_var_name(entrypoint_key: str) -> str:
    """Name the variable that holds a tracker's configuration."""
    return f"TORCHX_TRACKER_{entrypoint_key.upper()}_CONFIG"


def trackers_from_environ() -> Iterable[TrackerBase]:
    """Make the trackers that `TORCHX_TRACKERS` names, each with its own variable's configuration."""
    names = [name.strip() for name in os.environ.get(ENV_TORCHX_TRACKERS, "").split(",") if name.strip()]
    return build_trackers({name: os.environ.get(tracker_config_env_var_name(name)) for name in names})


def build_trackers(factory_and_config: Mapping[str, str | None]) -> Iterable[TrackerBase]:
    """Make trackers by name, from an entry point or `module:function`; one that fails is reported and left out.

    The run continues without it.
    """
    made = []
    for name, config in factory_and_config.items():
        try:
            made.append(_factory(name)(config))
        except Exception as error:  # noqa: BLE001 - a plugin may fail in any way
            said = str(error) if isinstance(error, plugins.PluginBrokenError) else f"{type(error).__name__}: {error}"
            facts.warn("tracker_broken", f"the tracker '{name}' cannot be used: {said}", plugin=name)
    return made


def _factory(name: str) -> Callable[[str | None], TrackerBase]:
    plugin = plugins.get(name, *GROUPS)
    if plugin is not None:
        factory: Any = plugin.load()
        return factory  # type: ignore[no-any-return]
    module, _, function = name.partition(":")
    if not function:
        known = ", ".join(each.name for each in plugins.find(*GROUPS)) or "none"
        raise LookupError(f"there is no tracker of this name (there is: {known}), and it is no module:function")
    from importlib import import_module

    found: Callable[[str | None], TrackerBase] = getattr(import_module(module), function)
    return found
