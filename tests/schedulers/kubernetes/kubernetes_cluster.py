"""A real Kubernetes on this machine: etcd, the API server, controllers, the scheduler, and two nodes.

    python -m tests.schedulers.kubernetes.kubernetes_cluster start FOLDER BINARIES
    python -m tests.schedulers.kubernetes.kubernetes_cluster load FOLDER
    python -m tests.schedulers.kubernetes.kubernetes_cluster stop FOLDER

Every node has a containerd and a kubelet of its own, and all pods are on one bridge. Nothing of a cluster that the user
has is touched: its kubeconfig is FOLDER/kubeconfig, and the tests use no other. It needs root, what `build.sh` has
built in BINARIES, and Debian's containerd, runc, containernetworking-plugins, iproute2, iptables, gcc and debootstrap.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from tests.schedulers.kubernetes import image

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0
TOKEN = "holdfast-test"
BRIDGE, NETWORK = "hf-k8s0", ipaddress.ip_network("10.77.0.0/16")
DNS_ADDRESS = "10.77.0.1"
#: The address of each node on the bridge, and the third number of the addresses of its pods.
NODES = {"node-a": ("10.77.0.1", 1), "node-b": ("10.77.0.2", 2)}
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS = ("containerd", "ctr", "runc", "ip", "iptables", "openssl")

CONTAINERD = """
version = 2
root = "{node}/root"
state = "{node}/state"
[grpc]
  address = "{node}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node}/cni"
"""
KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: test, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{folder}/certs/apiserver.crt", tls-server-name: kubernetes}}}}]
users: [{{name: test, user: {{token: {token}}}}}]
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
current-context: test
"""  # noqa: E501 - a document of few lines


def why_not(binaries: Path) -> str:
    """Say why there can be no cluster here; empty where there can."""
    if os.geteuid() != 0:
        return "a Kubernetes of one's own needs root"
    missing = [name for name in PROGRAMS if not (binaries / name).exists()]
    if missing:
        return f"{binaries} has no {', '.join(missing)}: tests/schedulers/kubernetes/build.sh builds them"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    return f"not installed here: {', '.join(missing)}" if missing else ""


class KubernetesCluster:
    """The cluster in a folder; a second object for the same folder controls the same one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.kubeconfig = self.folder / "kubeconfig"

    # -- start ---------------------------------------------------------------------------------------------------------

    def start(self, binaries: Path) -> None:
        """Start everything and wait until the nodes are ready, with the image of the tests on each."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "binaries").symlink_to(binaries.absolute())
        ports = dict(
            zip(("api", "etcd", "peer", "controllers", "scheduler", *NODES), free_ports(5 + len(NODES)), strict=True)
        )
        (self.folder / "ports.json").write_text(json.dumps(ports))
        self._make_bridge()
        self._start_control_plane(ports)
        image.pause(self.folder)
        self._spawn(
            "dns", sys.executable, "-m", "tests.schedulers.kubernetes.cluster_dns", str(self.kubeconfig), DNS_ADDRESS
        )
        for name in NODES:
            self._start_mounts(name)
            self._start_containerd(name)
        self.load_images()
        for name in NODES:
            self._start_kubelet(name)
        for name in NODES:
            wait_for(lambda name=name: self.is_ready(name), f"{name} is ready", self._logs)

    def load_images(self) -> None:
        """Give every node the images, with Holdfast as it lies here."""
        for path in (self.folder / "pause.tar", image.app(self.folder)):
            for name in NODES:
                socket_path = str(self.folder / name / "containerd.sock")
                self._call("ctr", "-a", socket_path, "-n", "k8s.io", "images", "import", str(path))

    def _make_bridge(self) -> None:
        self._call("ip", "link", "add", BRIDGE, "type", "bridge")
        for address, _ in NODES.values():
            self._call("ip", "addr", "add", f"{address}/{NETWORK.prefixlen}", "dev", BRIDGE)
        self._call("ip", "link", "set", BRIDGE, "up")
        # A Docker on the same machine forwards nothing for others by default, bridges included.
        self._call("iptables", "-w", "-I", "FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")

    def _start_control_plane(self, ports: dict[str, int]) -> None:
        folder = self.folder
        etcd = f"http://127.0.0.1:{ports['etcd']}"
        peer = f"http://127.0.0.1:{ports['peer']}"
        program = shutil.which("etcd") or str(Path(sys.executable).parent / "etcd")
        urls = ["--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer]
        urls += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self._spawn("etcd", program, "--data-dir", str(folder / "etcd"), *urls)
        self._call("openssl", "genrsa", "-out", str(folder / "sa.key"), "2048")
        (folder / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')
        self._spawn(
            "apiserver",
            self._binary("kube-apiserver"),
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={ports['api']}",
            "--insecure-port=0",
            f"--cert-dir={folder / 'certs'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.local",
            f"--service-account-key-file={folder / 'sa.key'}",
            f"--service-account-signing-key-file={folder / 'sa.key'}",
            "--disable-admission-plugins=ServiceAccount",
            "--kubelet-preferred-address-types=InternalIP",
        )
        self.kubeconfig.write_text(KUBECONFIG.format(folder=folder, port=ports["api"], token=TOKEN))
        wait_for(lambda: self.get("/readyz") == "ok", "the API server is ready", self._logs)
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1", "--port=0"]
        self._spawn(
            "controllers",
            self._binary("kube-controller-manager"),
            *common,
            f"--secure-port={ports['controllers']}",
            f"--cert-dir={folder / 'certs-controllers'}",
            f"--service-account-private-key-file={folder / 'sa.key'}",
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=20s",
        )
        self._spawn(
            "scheduler",
            self._binary("kube-scheduler"),
            *common,
            f"--secure-port={ports['scheduler']}",
            f"--cert-dir={folder / 'certs-scheduler'}",
        )

    def _start_mounts(self, name: str) -> None:
        """Give a node a view of the file system of its own: a kubelet clears pods' logs away that are not its own."""
        Path("/run/netns").mkdir(exist_ok=True)
        script = "for at in /run/netns /var/log; do mount -t tmpfs none $at || exit; done; touch /var/log/ready; "
        script += "exec sleep infinity"
        self._spawn(f"{name}-mounts", "unshare", "--mount", "sh", "-c", script)
        wait_for(lambda: _succeeds(*self._within(name), "test", "-e", "/var/log/ready"), f"{name} has its mounts")

    def _within(self, name: str) -> list[str]:
        return ["nsenter", f"--mount=/proc/{(self.folder / f'{name}-mounts.pid').read_text()}/ns/mnt"]

    def _start_containerd(self, name: str) -> None:
        node = self.folder / name
        (node / "cni").mkdir(parents=True, exist_ok=True)
        _, third = NODES[name]
        pods = {"subnet": str(NETWORK), "rangeStart": f"10.77.{third}.2", "rangeEnd": f"10.77.{third}.250"}
        plugin = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": False,
            "ipam": {"type": "host-local", "ranges": [[pods]], "dataDir": str(node / "ipam")},
        }
        network = {"cniVersion": "0.4.0", "name": name, "plugins": [plugin]}
        (node / "cni" / "10.conflist").write_text(json.dumps(network))
        (node / "containerd.toml").write_text(CONTAINERD.format(node=node, pause=image.PAUSE))
        self._spawn(f"{name}-containerd", *self._within(name), "containerd", "-c", str(node / "containerd.toml"))
        wait_for(
            lambda: _succeeds("ctr", "-a", str(node / "containerd.sock"), "version"), "containerd answers", self._logs
        )

    def _start_kubelet(self, name: str) -> None:
        node = self.folder / name
        address, _ = NODES[name]
        self._spawn(
            f"{name}-kubelet",
            *self._within(name),
            self._binary("kubelet"),
            f"--kubeconfig={self.kubeconfig}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{node / 'containerd.sock'}",
            f"--root-dir={node / 'kubelet'}",
            f"--hostname-override={name}",
            f"--node-ip={address}",
            f"--address={address}",
            f"--port={self._ports()[name]}",
            "--read-only-port=0",
            "--healthz-port=0",
            "--cgroup-driver=cgroupfs",
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=",
            "--fail-swap-on=false",
            f"--cert-dir={node / 'certs'}",
            "--resolv-conf=",
            f"--cluster-dns={DNS_ADDRESS}",
            "--cluster-domain=cluster.local",
            "--authorization-mode=AlwaysAllow",
            "--anonymous-auth=true",
            f"--pod-infra-container-image={image.PAUSE}",
            "--eviction-hard=",
            "--node-status-update-frequency=2s",
            "--serialize-image-pulls=false",
        )

    # -- what tests do -------------------------------------------------------------------------------------------------

    def get(self, path: str, method: str = "GET") -> str:
        """Ask the API server; returns an empty text where it does not answer."""
        address = f"https://127.0.0.1:{self._ports()['api']}{path}"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {TOKEN}"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def items(self, path: str) -> list[dict]:
        return json.loads(self.get(path) or "{}").get("items") or []

    def is_ready(self, node: str) -> bool:
        found = json.loads(self.get(f"/api/v1/nodes/{node}") or "{}")
        conditions = found.get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def pods(self, selector: str = "") -> list[dict]:
        """Return the pods of the tests' namespace."""
        query = f"?labelSelector={urllib.request.quote(selector)}" if selector else ""
        return self.items(f"/api/v1/namespaces/default/pods{query}")

    def delete_pod(self, name: str, *, hard: bool = False) -> None:
        """Delete a pod: politely, or the way that a lost machine does, where it is gone at once."""
        query = "?gracePeriodSeconds=0" if hard else ""
        assert self.get(f"/api/v1/namespaces/default/pods/{name}{query}", "DELETE")

    def kill_node(self, name: str) -> None:
        """Kill a node the way that power does: its daemons, its containers, and all that they have started."""
        doomed = [
            psutil.Process(int((self.folder / f"{name}-{each}.pid").read_text())) for each in ("kubelet", "containerd")
        ]
        shims = self._shims(name)
        doomed += [*shims, *(child for shim in shims for child in shim.children(recursive=True))]
        for each in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)

    def start_node(self, name: str) -> None:
        """Start a node that was killed."""
        self._start_containerd(name)
        self._start_kubelet(name)
        wait_for(lambda: self.is_ready(name), f"{name} is ready", self._logs)

    def container_processes(self) -> list[psutil.Process]:
        """Return the processes of all containers but those that only hold a pod's place."""
        found = [child for name in NODES for shim in self._shims(name) for child in shim.children(recursive=True)]
        return [each for each in found if _name(each) not in ("", "pause")]

    def _shims(self, name: str) -> list[psutil.Process]:
        socket_path = str(self.folder / name / "containerd.sock")
        return [
            each
            for each in psutil.process_iter(["name", "cmdline"])
            if "shim" in (each.info["name"] or "") and socket_path in (each.info["cmdline"] or ())
        ]

    # -- stop ----------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End everything, and leave nothing of it."""
        for name in ("controllers", "scheduler"):
            self._end(name)
        for name in NODES:
            self._end(f"{name}-kubelet")
            for shim in self._shims(name):
                for each in [*shim.children(recursive=True), shim]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
            self._end(f"{name}-containerd")
            self._end(f"{name}-mounts")
        for name in ("dns", "apiserver", "etcd"):
            self._end(name)
        mounted = [
            line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if f"{self.folder}/" in line
        ]
        for path in reversed(mounted):
            _succeeds("umount", "-l", path)
        _succeeds("iptables", "-w", "-D", "FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")
        _succeeds("ip", "link", "delete", BRIDGE)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, name: str) -> None:
        path = self.folder / f"{name}.pid"
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            process = psutil.Process(int(path.read_text()))
            process.terminate()
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait(10)
        path.unlink(missing_ok=True)

    # -- processes -----------------------------------------------------------------------------------------------------

    def _binary(self, name: str) -> str:
        return str(self.folder / "binaries" / name)

    def _ports(self) -> dict[str, int]:
        return json.loads((self.folder / "ports.json").read_text())

    def _spawn(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        (self.folder / f"{name}.pid").write_text(str(started.pid))
        started.returncode = 0  # it outlives this program, and is ended by its number

    def _call(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"

    def _logs(self) -> str:
        ends = {path.name: path.read_text(errors="replace")[-600:] for path in self.folder.glob("*.log")}
        return "\n".join(f"== {name}\n{end}" for name, end in ends.items())


def free_ports(count: int) -> list[int]:
    """Return ports that no program has."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(condition, what: str, more=lambda: "") -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came that {what}\n{more()}"
        time.sleep(0.1)


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def main(verb: str, folder: str, *binaries: str) -> None:
    """Start or stop a cluster."""
    cluster = KubernetesCluster(Path(folder))
    if verb == "stop":
        cluster.stop()
        return
    if verb == "load":
        cluster.load_images()
        return
    if reason := why_not(Path(binaries[0])):
        sys.exit(reason)
    try:
        cluster.start(Path(binaries[0]))
    except BaseException:
        cluster.stop()
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
