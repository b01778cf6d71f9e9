"""TorchX's `docker_workspace`: a mixin that builds a workspace into an image at once, and pushes it.

Our own schedulers ship code by themselves; this is for schedulers of others that derive from the mixin.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from holdfast.compat.names.torchx import TORCHX_VERSION
from holdfast.errors import UsageError
from holdfast.schedulers.containers.client import IMAGE_S, Engine
from holdfast.specs import AppDef, CfgVal, Role, runopts
from holdfast.workspace.api import Workspace, WorkspaceMixin
from holdfast.workspace.shipment import ship

TORCHX_DOCKERFILE = "Dockerfile.torchx"
DEFAULT_DOCKERFILE = b"\nARG IMAGE\nFROM $IMAGE\n\nCOPY . .\n"
#: What the name of an image begins with that was built here.
_BUILT = "sha256:"


class DockerWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Builds workspaces into images with Docker."""

    LABEL_VERSION: str = "torchx.pytorch.org/version"

    def __init__(self, *args: object, docker_client: Any = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        del docker_client  # images are built by the command `docker`
        self.__engine = Engine("docker")

    def workspace_opts(self) -> runopts:
        """The run options that concern the workspace."""
        options = runopts()
        options.add("image_repo", type_=str, help="repository to push built images to, as in registry/name")
        options.add("quiet", type_=bool, default=False, help="whether to print nothing while images are built")
        return options

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build the workspace on top of the role's image, and name the result in `role.image`."""
        del cfg
        with tempfile.TemporaryDirectory(prefix="holdfast-build-") as folder:
            code = Path(folder) / "code"
            ship(workspace, code)
            dockerfile = code / TORCHX_DOCKERFILE
            if not dockerfile.is_file():
                dockerfile = Path(folder) / "Dockerfile"
                dockerfile.write_bytes(DEFAULT_DOCKERFILE)
            words = ["build", "--quiet", f"--build-arg=IMAGE={role.image}", f"--build-arg=WORKSPACE={workspace}"]
            words += [f"--label={self.LABEL_VERSION}={TORCHX_VERSION}", f"--file={dockerfile}", str(code)]
            what = f"the workspace cannot be built into an image on top of {role.image}"
            role.image = self.__engine.call(words, what, timeout_s=IMAGE_S).decode().strip()

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[str, tuple[str, str]]:
        """Name built images as they will be called once pushed; returns repository and tag of each."""
        repository = cfg.get("image_repo")
        images: dict[str, tuple[str, str]] = {}
        for role in app.roles:
            if not role.image.startswith(_BUILT):
                continue
            if not repository:
                raise UsageError(
                    "the workspace was built into an image: name where to push it with -cfg image_repo=REPO"
                )
            tag = role.image.removeprefix(_BUILT)
            images[role.image] = (str(repository), tag)
            role.image = f"{repository}:{tag}"
        return images

    def push_images(self, images_to_push: dict[str, tuple[str, str]]) -> None:
        """Push what `dryrun_push_images` named."""
        for image, (repository, tag) in images_to_push.items():
            name = f"{repository}:{tag}"
            self.__engine.call(["tag", image, name], f"{image} cannot be named {name}")
            self.__engine.call(["push", name], f"{name} cannot be pushed", timeout_s=IMAGE_S)


def print_push_events(events: Iterable[Mapping[str, str]], stream: IO[str] | None = None) -> None:
    """Print what Docker's API tells while an image is pushed; raises what it says went wrong."""
    import sys

    out = stream if stream is not None else sys.stderr
    for event in events:
        if event.get("error"):
            raise RuntimeError(f"failed to push docker image: {event['error']}")
        if event.get("status"):
            print(" ".join(filter(None, [event.get("id"), event["status"], event.get("progress")])), file=out)
