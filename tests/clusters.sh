#!/bin/bash
# Runs the suites of all cluster backends against the real thing; `make test-clusters` calls it.
# It installs what is missing from Debian's own packages, and takes away again what it has installed.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins munge mariadb-server-core mariadb-client-core openssh-server openssh-client iproute2)
# For Kubernetes, which is built once and kept in a cache folder.
PACKAGES+=(containerd runc containernetworking-plugins iptables etcd-server debootstrap golang-go dpkg-dev gcc libc6-dev make rsync jq)
CACHE=${HOLDFAST_CLUSTERS_CACHE:-$HOME/.cache/holdfast-clusters}
PACKAGES+=(docker.io podman netavark aardvark-dns runc iptables)  # containers: the tests start a dockerd of their own

fail() { echo "make test-clusters: $*" >&2; exit 2; }

[ -r /etc/debian_version ] || fail "this needs Debian: the daemons come from its packages (${PACKAGES[*]})"
[ "$(id -u)" = 0 ] || fail "this needs root, to install packages and to make network namespaces"

missing=()
for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q ^ii || missing+=("$package")
done
# Only what this script itself installs is taken away: other programs may install packages while the tests run.
added=() && users=()
for user in munge slurm sshd etcd dnsmasq mysql; do id -u "$user" >/dev/null 2>&1 || users+=("$user"); done

leave_nothing() {
    local code=$?
    [ -z "${made_policy:-}" ] || rm -f /usr/sbin/policy-rc.d
    if [ -d "${kubernetes:-}" ]; then
        "${PYTHON:-.venv/bin/python}" -m tests.schedulers.kubernetes.kubernetes_cluster stop "$kubernetes" || code=1
    fi
    if [ ${#added[@]} -gt 0 ]; then
        echo "== taking away again: ${added[*]}"
        # dpkg, unlike apt, does not take packages along that were not named: one that others now need stays.
        DEBIAN_FRONTEND=noninteractive dpkg --purge --abort-after=1000 "${added[@]}" >/dev/null || code=1
        for user in "${users[@]}"; do
            ! id -u "$user" >/dev/null 2>&1 || userdel "$user" || code=1
        done
    fi
    exit $code
}
trap leave_nothing EXIT

if [ ${#missing[@]} -gt 0 ]; then
    echo "== this installs Debian's packages ${missing[*]}, and takes them away again at the end"
    if [ ! -e /usr/sbin/policy-rc.d ]; then  # no daemon is to be started: tests start their own
        made_policy=1
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
    fi
    apt-get update -qq
    mapfile -t added < <(apt-get install -s --no-install-recommends "${missing[@]}" | awk '/^Inst / {print $2}')
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
    tests/schedulers/test_contract.py tests/schedulers/local/test_acceptance.py tests/schedulers/slurm tests/schedulers/ssh \
    tests/schedulers/containers tests/schedulers/kubernetes "$@"

# A newer Slurm, from a newer Debian: it needs a Python of its own to be usable there, as that of pyenv or uv is.
newer=$CACHE/slurm-24.11
if [ ! -e "$newer" ]; then
    echo "== a Debian 13 with Slurm 24.11 is made in $newer, and kept for the next time"
    rm -rf "$newer.new"
    mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
    needed=slurmctld,slurmd,slurmdbd,slurm-client,slurm-wlm-basic-plugins,slurm-wlm-mysql-plugin,munge,libffi8
    debootstrap --variant=minbase --include=$needed trixie "$newer.new" ${mirror:+"$mirror"} >"$CACHE/debootstrap.log" 2>&1 ||
        { tail -20 "$CACHE/debootstrap.log" >&2; fail "the Debian with the newer Slurm could not be made"; }
    mv "$newer.new" "$newer"
fi
echo "== Slurm $(chroot "$newer" dpkg-query -W -f '${Version}' slurmctld)"
HOLDFAST_TEST_CLUSTERS=1 HOLDFAST_TEST_SLURM_ROOT=$newer "${PYTHON:-.venv/bin/python}" -m pytest -q --durations=10 \
    tests/schedulers/slurm/test_jobs.py tests/schedulers/slurm/test_accounts.py tests/schedulers/slurm/test_contract.py

# Ray has many packages of its own, so it is kept apart from those of the other tests.
if [ ! -e .venv-ray/.ready ]; then
    echo "== this installs Ray into .venv-ray, which is kept for the next time"
    "${PYTHON:-.venv/bin/python}" -m venv .venv-ray
    .venv-ray/bin/python -m pip install --quiet --editable '.[ray]' hypothesis numpy psutil pytest pytest-timeout pytest-xdist
    touch .venv-ray/.ready
fi
echo "== Ray $(.venv-ray/bin/python -c 'import ray; print(ray.__version__)')"
HOLDFAST_TEST_CLUSTERS=1 .venv-ray/bin/python -m pytest -q --durations=10 tests/schedulers/ray
