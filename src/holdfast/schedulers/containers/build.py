"""Images with a workspace in them: the code is copied to a folder, as it would be shipped, and built from there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from holdfast.errors import UsageError
from holdfast.schedulers.containers.client import IMAGE_S, Engine
from holdfast.schedulers.containers.render import Build, ContainerRequest, build_words, default_dockerfile
from holdfast.workspace.shipment import ship

#: Dockerfiles that a workspace may have, the first that is there counts.
DOCKERFILES = ("Dockerfile.holdfast", "Dockerfile.torchx")


def find_dockerfile(roots: dict[str, str], named: str) -> str:
    """Return the Dockerfile of a workspace; empty where it has none. One that was named must be there."""
    folders = [Path(source) for source, below in roots.items() if not below and Path(source).is_dir()]
    for name in [named] if named else DOCKERFILES:
        if any((folder / name).is_file() for folder in folders):
            return name
    if named:
        raise UsageError(f"the workspace has no file {named}, which -cfg dockerfile names")
    return ""


def build_image(engine: Engine, request: ContainerRequest, build: Build, home: Path) -> None:
    """Build one image; raises what the engine says where it cannot."""
    with tempfile.TemporaryDirectory(prefix="holdfast-build-") as folder:
        code = Path(folder) / "code"
        ship(build.roots, code, avoid=[home])
        dockerfile = code / build.dockerfile if build.dockerfile else Path(folder) / "Dockerfile"
        if not build.dockerfile:
            dockerfile.write_text(default_dockerfile())
        words = build_words(request, build, str(code), str(dockerfile))
        engine.call(words, f"the workspace cannot be built into an image on top of {build.base}", timeout_s=IMAGE_S)
