"""The images of the tests' cluster, made without a registry: archives that `ctr images import` takes.

The one for apps is Debian with Python, what Holdfast needs, and Holdfast as it lies here. Its base is kept in a cache
folder, because it takes minutes to make.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

PAUSE, APP = "localhost/holdfast-pause:1", "localhost/holdfast-test:1"
ROOT = Path(__file__).parent.parent.parent.parent
#: Where Debian's Python looks for packages.
PACKAGES = "usr/local/lib/python3.11/dist-packages"
NEEDED = ("click", "cloudpickle", "docstring-parser", "msgspec", "numpy", "pathspec", "psutil", "rich", "uvloop")


def cache() -> Path:
    """Return the folder for what takes long to make."""
    named = os.environ.get("HOLDFAST_CLUSTERS_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "holdfast-clusters"


def pause(folder: Path) -> Path:
    """Make the image that only holds a pod's place."""
    program = folder / "pause"
    source = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
    subprocess.run(["gcc", "-static", "-xc", "-o", str(program), "-"], input=source, text=True, check=True)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(program, "pause")
    return _archive(folder / "pause.tar", PAUSE, [layer.getvalue()], {"Entrypoint": ["/pause"]})


def app(folder: Path) -> Path:
    """Make the image for apps."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        source = ROOT / "src" / "holdfast"
        tar.add(source, f"{PACKAGES}/holdfast", filter=lambda each: None if "__pycache__" in each.name else each)
        for file in metadata.distribution("holdfast").files or ():
            if file.parts[0].endswith(".dist-info"):
                tar.add(str(file.locate()), f"{PACKAGES}/{file}")
        work = tarfile.TarInfo("work")
        work.type, work.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(work)
    config = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"], "WorkingDir": "/work", "Cmd": ["sh"]}
    return _archive(folder / "app.tar", APP, [_base().read_bytes(), layer.getvalue()], config)


def _base() -> Path:
    """Return the layer with Debian, Python and the packages, made once."""
    kept = cache() / "image-base.tar"
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made) / "root"
        sources = Path("/etc/apt/sources.list.d/debian.sources").read_text()
        mirror = next(line.split()[1] for line in sources.splitlines() if line.startswith("URIs:"))
        words = ["debootstrap", "--variant=minbase", "--include=python3", "bookworm", str(root), mirror]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        wheels = [
            "--only-binary=:all:",
            "--python-version=3.11",
            "--implementation=cp",
            "--platform=manylinux_2_28_x86_64",
        ]
        wheels += ["--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64", "--platform=any"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *wheels, "--target", str(root / PACKAGES), *NEEDED]
        subprocess.run(pip, check=True)
        for left in ("usr/share/doc", "usr/share/locale", "usr/share/man", "var/lib/apt/lists", "var/cache/apt"):
            shutil.rmtree(root / left, ignore_errors=True)
        draft = kept.with_suffix(".new")
        subprocess.run(
            ["tar", "-C", str(root), "--exclude=./dev/*", "--exclude=./proc/*", "-cf", str(draft), "."], check=True
        )
        draft.replace(kept)
    return kept


def _archive(path: Path, name: str, layers: list[bytes], config: dict[str, object]) -> Path:
    """Write an image as `docker save` does."""
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    text = json.dumps(described).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}.tar" for digest in digests]}]
    parts = {config_name: text, "manifest.json": json.dumps(manifest).encode()}
    parts |= {f"{digest}.tar": layer for digest, layer in zip(digests, layers, strict=True)}
    with tarfile.open(path, "w") as tar:
        for part, data in parts.items():
            member = tarfile.TarInfo(part)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path
