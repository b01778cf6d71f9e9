"""A real Slurm on this machine: munged, slurmctld and several slurmd, in a folder of their own.

Nothing of the machine's own Slurm is touched: keys, sockets, ports and settings are this cluster's. It needs root, and
Debian's packages slurmctld, slurmd, slurm-client and munge.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 120.0

CONF = """
ClusterName=holdfast-test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.log
SlurmdTimeout=10
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
KillWait=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=8 RealMemory=64000 State=UNKNOWN
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}]
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=10
"""


def why_not() -> str:
    """Say why there can be no cluster here; empty where there can."""
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        return f"Slurm is not installed here ({', '.join(missing)})"
    return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"


class SlurmCluster:
    """A cluster of several nodes, all on this machine; `close` leaves nothing of it."""

    def __init__(self, folder: Path, nodes: int = 4) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}

    def start(self) -> None:
        """Start the daemons and wait until all nodes are there."""
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        names = {
            "key-file": key,
            "socket": "munge.sock",
            "pid-file": "munged.pid",
            "log-file": "munged.log",
            "seed-file": "munge.seed",
        }
        self._call("munged", "--force", *(f"--{flag}={self.folder / name}" for flag, name in names.items()))
        count = len(self.names)
        port = free_ports(count + 1)
        settings = CONF.format(folder=self.folder, port=port, nodes=count, first=port + 1, last=port + count)
        self.conf.write_text(settings)
        self._call("slurmctld", "-i", "-f", str(self.conf))
        for name in self.names:
            self.start_node(name)
        wait_for(lambda: self.sinfo().count("idle") == count, "all nodes are idle")

    def start_node(self, name: str) -> None:
        """Start one node."""
        self._call("slurmd", "-N", name, "-f", str(self.conf))

    def sinfo(self) -> str:
        """Return the state of each node, a line each."""
        words = ["sinfo", "--Node", "--noheader", "--partition=main", "--format=%N %t"]
        return subprocess.run(words, env=self._env, capture_output=True, text=True, check=False).stdout

    def kill_node(self, name: str) -> None:
        """Kill a node the way that power does: its daemon, its steps, and all that they have started."""
        daemon = int((self.folder / f"slurmd.{name}.pid").read_text())
        steps = [each for each in psutil.process_iter(["name", "environ"]) if self._is_step_of(each, name)]
        doomed = [psutil.Process(daemon), *steps]
        doomed += [child for each in steps for child in each.children(recursive=True)]
        # srun has a child that ends the step if it sees srun die, which no power failure lets it do.
        doomed.sort(key=lambda each: each.name() != "srun" or each.parent().name() != "srun")
        for each in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)

    def revive(self) -> None:
        """Start every node again that was killed, and wait until all are free."""
        for name in self.names:
            if not psutil.pid_exists(int((self.folder / f"slurmd.{name}.pid").read_text())):
                self.start_node(name)
        wait_for(lambda: self.sinfo().count("idle") == len(self.names), "all nodes are back")

    def _is_step_of(self, process: psutil.Process, node: str) -> bool:
        """Whether a process is the root of a job's processes on a node."""
        try:
            if process.info["name"] != "slurmstepd":
                return False
            below = process.children(recursive=True)
            return any(each.environ().get("SLURMD_NODENAME") == node for each in below) and any(
                each.environ().get("SLURM_CONF") == str(self.conf) for each in below
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def close(self) -> None:
        """Stop the daemons, and whatever of a job is left."""
        pids = [int(path.read_text()) for path in self.folder.glob("*.pid") if path.read_text().strip()]
        left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                ours = each.environ().get("SLURM_CONF") == str(self.conf) or each.cwd() == str(self.folder)
                if ours and each.pid != os.getpid():
                    left.append(each)
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
            _, left = psutil.wait_procs(left, timeout=10)
        assert left == []

    def _call(self, *words: str) -> None:
        subprocess.run(words, env=self._env, check=True, stdout=subprocess.DEVNULL)


def free_ports(count: int) -> int:
    """Return the first of several ports in a row that no program has."""
    for first in range(17_000 + os.getpid() % 500 * 5, 19_990, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no ports are free")


def wait_for(condition, what: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.05)
