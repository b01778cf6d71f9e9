"""TorchX's names of Docker, Ray and job services lead to our schedulers."""

import io
from importlib import import_module

import pytest

from holdfast import compat
from holdfast.compat.torchx import cloud_schedulers, docker_workspace
from holdfast.compat.torchx.docker_scheduler import DockerScheduler, _to_str, create_scheduler
from holdfast.errors import UsageError
from holdfast.schedulers import Scheduler
from holdfast.specs import AppDef, Role


def test_docker_is_ours_and_still_docker_to_those_who_derive_from_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))

    class Mine(DockerScheduler):
        pass

    app = AppDef("app", [Role("main", "img:1", entrypoint="echo", args=["hi"])])
    scheduler = Mine("s")

    assert scheduler.backend == "docker"
    assert isinstance(scheduler, docker_workspace.DockerWorkspaceMixin)
    assert {"copy_env", "env", "privileged", "image_repo", "quiet"} <= {name for name, _ in scheduler.run_opts()}
    assert "docker create" in str(scheduler.submit_dryrun(app, {}))
    assert isinstance(create_scheduler("s"), DockerScheduler)
    assert (_to_str(b"a"), _to_str("b")) == ("a", "b")


@pytest.fixture
def torchx():
    """After `compat.install("torchx")`."""
    take_back = compat.install("torchx")
    yield
    take_back()


@pytest.mark.usefixtures("torchx")
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("docker", "DockerScheduler"),
        ("aws_batch", "AWSBatchScheduler"),
        ("aws_sagemaker", "AWSSageMakerScheduler"),
        ("gcp_batch", "GCPBatchScheduler"),
        ("lsf", "LsfScheduler"),
        ("ray", "RayScheduler"),
        ("kubernetes", "KubernetesScheduler"),
        ("slurm", "SlurmScheduler"),
    ],
)
def test_each_module_has_its_class_and_its_factory(module, name, tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    found = import_module(f"torchx.schedulers.{module}_scheduler")

    assert issubclass(getattr(found, name), Scheduler)
    assert isinstance(found.create_scheduler("s"), getattr(found, name))
    assert isinstance(cloud_schedulers.has_ray(), bool)


def test_built_images_are_named_where_they_are_pushed():
    app = AppDef("app", [Role("a", "sha256:123"), Role("b", "img:1")])
    mixin = docker_workspace.DockerWorkspaceMixin()

    with pytest.raises(UsageError, match="image_repo"):
        mixin.dryrun_push_images(app, {})
    assert mixin.dryrun_push_images(app, {"image_repo": "reg/x"}) == {"sha256:123": ("reg/x", "123")}
    assert [role.image for role in app.roles] == ["reg/x:123", "img:1"]


def test_what_docker_tells_of_a_push_is_printed():
    out = io.StringIO()
    docker_workspace.print_push_events([{"id": "1", "status": "Pushing", "progress": "50%"}], out)

    assert out.getvalue() == "1 Pushing 50%\n"
    with pytest.raises(RuntimeError, match="denied"):
        docker_workspace.print_push_events([{"error": "denied"}], out)
