#!/bin/bash
# Runs the suites of all cluster backends against the real thing; `make test-clusters` calls it.
# It installs what is missing from Debian's own packages, and takes away again what it has installed.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge openssh-server openssh-client iproute2)
# For Kubernetes, which is built once and kept in a cache folder.
PACKAGES+=(containerd runc containernetworking-plugins iptables etcd-server debootstrap golang-go dpkg-dev gcc libc6-dev make rsync jq)
CACHE=${HOLDFAST_CLUSTERS_CACHE:-$HOME/.cache/holdfast-clusters}
PACKAGES+=(docker.io podman netavark aardvark-dns runc iptables)  # containers: the tests start a dockerd of their own

fail() { echo "make test-clusters: $*" >&2; exit 2; }

[ -r /etc/debian_version ] || fail "this needs Debian: the daemons come from its packages (${PACKAGES[*]})"
[ "$(id -u)" = 0 ] || fail "this needs root, to install packages and to make network namespaces"

installed() { dpkg-query -W -f '${Package} ${db:Status-Abbrev}\n' | awk '$2 ~ /^ii/ {print $1}' | sort; }
users() { cut -d: -f1 /etc/passwd | sort; }

missing=()
for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q ^ii || missing+=("$package")
done
before=$(mktemp) && users_before=$(mktemp)
installed >"$before" && users >"$users_before"

leave_nothing() {
    local code=$?
    if [ -d "${kubernetes:-}" ]; then
        "${PYTHON:-.venv/bin/python}" -m tests.schedulers.kubernetes.kubernetes_cluster stop "$kubernetes" || code=1
    fi
    mapfile -t added < <(comm -13 "$before" <(installed))
    if [ ${#added[@]} -gt 0 ]; then
        echo "== taking away again: ${added[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq "${added[@]}" >/dev/null || code=1
        for user in $(comm -13 "$users_before" <(users)); do userdel "$user" || code=1; done
    fi
    rm -f "$before" "$users_before"
    exit $code
}
trap leave_nothing EXIT

if [ ${#missing[@]} -gt 0 ]; then
    echo "== this installs Debian's packages ${missing[*]}, and takes them away again at the end"
    printf '#!/bin/sh\nexit 101\n' >/tmp/policy-rc.d.$$  # their daemons are not to be started: tests start their own
    chmod 755 /tmp/policy-rc.d.$$
    [ -e /usr/sbin/policy-rc.d ] || { mv /tmp/policy-rc.d.$$ /usr/sbin/policy-rc.d; made_policy=1; }
    rm -f /tmp/policy-rc.d.$$
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    [ -z "${made_policy:-}" ] || rm -f /usr/sbin/policy-rc.d
else
    echo "== this installs nothing: ${PACKAGES[*]} are there"
fi

echo "== Kubernetes is in $CACHE/kubernetes-1.20; the first time it is built there, which takes ten minutes or more"
mkdir -p "$CACHE"
tests/schedulers/kubernetes/build.sh "$CACHE/kubernetes-1.20" >"$CACHE/build.log" 2>&1 ||
    { tail -20 "$CACHE/build.log" >&2; fail "Kubernetes could not be built"; }
kubernetes=$(mktemp -d -u /tmp/holdfast-kubernetes.XXXXXX)
HOLDFAST_CLUSTERS_CACHE=$CACHE "${PYTHON:-.venv/bin/python}" -m tests.schedulers.kubernetes.kubernetes_cluster \
    start "$kubernetes" "$CACHE/kubernetes-1.20"

echo "== Slurm $(dpkg-query -W -f '${Version}' slurmctld), $(ssh -V 2>&1), $(dockerd --version), $(podman --version)"
HOLDFAST_TEST_CLUSTERS=1 HOLDFAST_TEST_KUBECONFIG=$kubernetes/kubeconfig "${PYTHON:-.venv/bin/python}" -m pytest -q --durations=10 \
    tests/schedulers/test_contract.py tests/schedulers/slurm tests/schedulers/ssh tests/schedulers/containers \
    tests/schedulers/kubernetes "$@"

# Ray has many packages of its own, so it is kept apart from those of the other tests.
if [ ! -e .venv-ray/.ready ]; then
    echo "== this installs Ray into .venv-ray, which is kept for the next time"
    "${PYTHON:-.venv/bin/python}" -m venv .venv-ray
    .venv-ray/bin/python -m pip install --quiet --editable '.[ray]' hypothesis numpy psutil pytest pytest-timeout pytest-xdist
    touch .venv-ray/.ready
fi
echo "== Ray $(.venv-ray/bin/python -c 'import ray; print(ray.__version__)')"
HOLDFAST_TEST_CLUSTERS=1 .venv-ray/bin/python -m pytest -q --durations=10 tests/schedulers/ray
