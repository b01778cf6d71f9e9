"""A real Slurm on this machine: munged, slurmctld and several slurmd, in a folder of their own.

Nothing of the machine's own Slurm is touched: keys, sockets, ports and settings are this cluster's. It needs root, and
Debian's packages slurmctld, slurmd, slurm-client and munge; for accounts also slurmdbd, mariadb-server-core and
mariadb-client-core.

HOLDFAST_TEST_SLURM_ROOT names a folder with a whole system, of a newer Debian, whose Slurm is used instead. Its
programs run there (chroot), with this machine's Python and files mounted in a namespace that is gone with the cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
FOR_ACCOUNTS = ("slurmdbd", "sacct", "sacctmgr")
MARIADB = ("mariadbd", "mariadb-install-db", "my_print_defaults")
#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0

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
{accounts}
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
NO_ACCOUNTS = "AccountingStorageType=accounting_storage/none"
ACCOUNTS = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.sock"""
DBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=root
StorageLoc=slurm
"""
#: Mounts in the other system what of this machine a job needs, then stays for the others to come to.
HOLDER = """
set -e
mount --make-rprivate /
for each in /proc /sys /dev /etc/hosts {places}; do
    [ -d $each ] && mkdir -p {root}$each || touch {root}$each
    mount --bind $each {root}$each
done
echo ready
exec sleep infinity
"""
WRAPPER = """#!/bin/sh
exec nsenter --mount --target {holder} chroot {root} env -C "$PWD" {program} "$@"
"""
SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def other_root() -> Path | None:
    """Return the folder of the other system whose Slurm is to be used."""
    named = os.environ.get("HOLDFAST_TEST_SLURM_ROOT")
    return Path(named) if named else None


def why_not(*, accounts: bool = False) -> str:
    """Say why there can be no cluster here; empty where there can."""
    root = other_root()
    if root is not None and sys.base_prefix.startswith("/usr"):
        return "the other system has a /usr of its own, so this Python cannot be used there"
    search = f"{root}/usr/bin:{root}/usr/sbin" if root is not None else SEARCH
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if accounts:
        missing += [name for name in FOR_ACCOUNTS if shutil.which(name, path=search) is None]
        missing += [name for name in MARIADB if shutil.which(name, path=SEARCH) is None]
    if missing:
        return f"Slurm is not installed here ({', '.join(missing)})"
    return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"


class SlurmCluster:
    """A cluster of several nodes, all on this machine; `close` leaves nothing of it."""

    def __init__(self, folder: Path, nodes: int = 4, *, accounts: bool = False) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._accounts = accounts
        self._root = other_root()
        #: What leads a program to this cluster.
        self.environ = {"SLURM_CONF": str(self.conf), "PATH": f"{folder}/bin:{SEARCH}"}
        self._env = {**os.environ, **self.environ}

    def start(self) -> None:
        """Start the daemons and wait until all nodes are there."""
        (self.folder / "state").mkdir(parents=True)
        if self._root is not None:
            self._enter(self._root)
        self._start_munge()
        count = len(self.names)
        port = free_ports(count + 3)
        accounts = ACCOUNTS.format(port=port + count + 1, folder=self.folder) if self._accounts else NO_ACCOUNTS
        last = port + count
        self.conf.write_text(
            CONF.format(folder=self.folder, port=port, nodes=count, first=port + 1, last=last, accounts=accounts)
        )
        if self._accounts:
            self._start_accounts(last + 1, last + 2)
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        wait_for(lambda: self.sinfo().count("idle") == count, "all nodes are idle")

    def _enter(self, root: Path) -> None:
        """Make a namespace in which the other system has what it needs, and commands that lead there."""
        inside = {Path("/tmp"), self.folder, *(Path(each) for each in (sys.prefix, sys.base_prefix))}
        inside |= {Path(each) for each in sys.path if Path(each).is_dir()}
        places = sorted({f"/{each.resolve().parts[1]}" for each in inside} - {"/usr"})
        script = HOLDER.format(root=root, places=" ".join(places))
        holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], cwd="/", stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        (self.folder / "holder.pid").write_text(str(holder.pid))
        holder.stdout.close()
        holder.returncode = 0  # it is ended by its number
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.folder / "bin").mkdir()
        for name in (*PROGRAMS, *FOR_ACCOUNTS, "salloc", "sinfo"):
            path = self.folder / "bin" / name
            found = str(shutil.which(name, path=f"{root}/usr/bin:{root}/usr/sbin")).removeprefix(str(root))
            path.write_text(WRAPPER.format(holder=holder.pid, root=root, program=found))
            path.chmod(0o755)

    def _start_munge(self) -> None:
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

    def _start_accounts(self, port: int, storage: int) -> None:
        """Start a MariaDB and Slurm's daemon for accounts, which keeps them there."""
        data = self.folder / "mariadb"
        common = ["--no-defaults", f"--datadir={data}", "--user=root"]
        self._call("mariadb-install-db", *common, "--skip-test-db")
        words = ["mariadbd", *common, "--skip-grant-tables", "--bind-address=127.0.0.1", f"--port={storage}"]
        words += [f"--socket={data}/socket", f"--pid-file={self.folder}/mariadb.pid"]
        with (self.folder / "mariadb.log").open("ab") as log:
            started = subprocess.Popen(words, env=self._env, stdout=log, stderr=log, cwd=self.folder)
        started.returncode = 0  # it is ended by its number
        wait_for(lambda: is_open(storage), "MariaDB answers")
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(DBD_CONF.format(folder=self.folder, port=port, storage=storage))
        conf.chmod(0o600)
        self._call("slurmdbd")
        wait_for(lambda: is_open(port), "slurmdbd answers")
        self._call("sacctmgr", "--immediate", "add", "cluster", "holdfast-test")

    def start_controller(self) -> None:
        """Start the controller; one that was stopped goes on where it was."""
        self._call("slurmctld", "-i", "-f", str(self.conf))

    def stop_controller(self) -> None:
        """Stop the controller, as when it is upgraded: jobs go on, and no command is answered."""
        process = psutil.Process(int((self.folder / "slurmctld.pid").read_text()))
        process.terminate()
        process.wait(PATIENCE_S)

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


def is_open(port: int) -> bool:
    """Whether a program listens at a port."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0).close()
        return True
    return False


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
