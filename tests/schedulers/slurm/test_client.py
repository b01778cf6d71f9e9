"""Slurm's commands where there is no cluster."""

import pytest

from holdfast.errors import UnavailableError
from holdfast.schedulers.slurm import client

#: What sbatch of Slurm 22.05 and 24.11 says on a machine that has Slurm's packages and no settings.
SAID = """sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
sbatch: error: fetch_config: DNS SRV lookup failed
sbatch: error: _establish_config_source: failed to fetch config
sbatch: fatal: Could not establish a configuration source"""


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return the function that puts a command of Slurm in place; no other can be found."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name, script):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return put


def test_a_machine_without_slurm_is_told(commands, tmp_path):
    with pytest.raises(UnavailableError, match="sbatch was not found: run this on a login node of the cluster"):
        client.submit(tmp_path / "script", {"PATH": str(tmp_path)})


def test_commands_without_a_cluster_are_told_in_one_sentence(commands, tmp_path):
    commands("sbatch", f"echo '{SAID}' >&2; exit 1")
    with pytest.raises(UnavailableError) as raised:
        client.submit(tmp_path / "script", {"PATH": str(tmp_path)})

    assert str(raised.value) == (
        "Slurm's commands are here, but no cluster's settings (slurm.conf): run this on a login node of the cluster, "
        "or set SLURM_CONF"
    )


def test_a_controller_that_is_away_for_a_while_is_waited_for(commands, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(client, "ASK_EVERY_S", 0.0)
    away = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    tries = tmp_path / "tries"
    commands(
        "scontrol",
        f"echo >>{tries}; [ -e {tries}.third ] || {{ [ -e {tries}.second ] && : >{tries}.third; "
        f": >{tries}.second; {away}; }}; echo JobId=7 JobState=RUNNING NodeList=n1",
    )
    (info,) = client.find_patiently("7")

    assert (info.id, info.state, info.nodes) == ("7", "RUNNING", "n1")
    assert capsys.readouterr().err.count("cannot ask Slurm about job 7") == 2
