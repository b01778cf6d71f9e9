#!/bin/bash
# Runs the suites of all cluster backends against the real thing; `make test-clusters` calls it.
# It installs what is missing from Debian's own packages, and takes away again what it has installed.
# Words after it choose parts: local slurm ssh containers kubernetes newer-slurm ray; all are run without any.
# With --if-possible first, a machine on which the packages cannot be installed is no failure: it says why, and ends well.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins munge mariadb-server-core mariadb-client-core openssh-server openssh-client iproute2)
# For Kubernetes, which is built once and kept in a cache folder.
PACKAGES+=(containerd runc containernetworking-plugins iptables etcd-server debootstrap golang-go dpkg-dev gcc libc6-dev make rsync jq)
CACHE=${HOLDFAST_CLUSTERS_CACHE:-$HOME/.cache/holdfast-clusters}
PACKAGES+=(docker.io podman netavark aardvark-dns runc iptables)  # containers: the tests start a dockerd of their own

if_possible=
[ "${1:-}" != --if-possible ] || { if_possible=1 && shift; }
fail() {
    [ -z "$if_possible" ] || { echo "make test-clusters: skipped: $*"; exit 0; }
    echo "make test-clusters: $*" >&2
    exit 2
}
export DEBIAN_FRONTEND=noninteractive
# Another program may be installing packages: it is waited for.
apt() { apt-get -o DPkg::Lock::Timeout=600 -qq "$@"; }
purge() {
    # dpkg, unlike apt, does not take packages along that were not named: one that others now need stays.
    until said=$(LC_ALL=C dpkg --purge --abort-after=1000 "$@" 2>&1); do
        [[ $said == *"lock"*"another process"* ]] || { echo "$said" >&2; return 1; }
        sleep 1
    done
}

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
        purge "${added[@]}" || code=1
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
    apt update || fail "the lists of Debian's packages cannot be read"
    mapfile -t added < <(apt-get install -s --no-install-recommends "${missing[@]}" | awk '/^Inst / {print $2}')
    [ ${#added[@]} -gt 0 ] || fail "Debian's mirror lacks some of the packages"
    apt install -y --no-install-recommends "${missing[@]}" >/dev/null || fail "the packages cannot be installed"
    [ -z "${made_policy:-}" ] || rm -f /usr/sbin/policy-rc.d
else
    echo "== this installs nothing: ${PACKAGES[*]} are there"
fi

# Each part runs, also when one before it has failed; the end says how each went.
parts=() && failed= && chosen=" $* "
part() {
    local name=$2 began=$SECONDS code=0
    [[ $chosen == "  " || $chosen == *" $1 "* ]] || return 0
    shift 2
    echo "== $name"
    "$@" || code=$?
    [ $code = 0 ] || failed=1
    parts+=("$(printf '%-40s %6d s  %s' "$name" $((SECONDS - began)) "$([ $code = 0 ] && echo passed || echo "FAILED ($code)")")")
    return 0
}
PYTHON=${PYTHON:-.venv/bin/python}
export HOLDFAST_TEST_CLUSTERS=1 HOLDFAST_CLUSTERS_CACHE=$CACHE
mkdir -p "$CACHE"
suite() { "$PYTHON" -m pytest -q --durations=10 "$@"; }

part local "local" suite tests/schedulers/test_contract.py tests/schedulers/local/test_acceptance.py
part slurm "Slurm $(dpkg-query -W -f '${Version}' slurmctld)" suite tests/schedulers/slurm
part ssh "SSH, $(ssh -V 2>&1 | cut -d, -f1)" suite tests/schedulers/ssh
part containers "$(dockerd --version | cut -d, -f1), $(podman --version)" suite tests/schedulers/containers

build_kubernetes() {
    echo "Kubernetes is in $CACHE/kubernetes-1.20; the first time it is built there, which takes ten minutes or more"
    tests/schedulers/kubernetes/build.sh "$CACHE/kubernetes-1.20" >"$CACHE/build.log" 2>&1 || { tail -20 "$CACHE/build.log" >&2; return 1; }
}
kubernetes=$(mktemp -d -u /tmp/holdfast-kubernetes.XXXXXX)
on_kubernetes() {
    "$PYTHON" -m tests.schedulers.kubernetes.kubernetes_cluster start "$kubernetes" "$CACHE/kubernetes-1.20" || return
    local code=0
    HOLDFAST_TEST_KUBECONFIG=$kubernetes/kubeconfig suite tests/schedulers/kubernetes || code=$?
    "$PYTHON" -m tests.schedulers.kubernetes.kubernetes_cluster stop "$kubernetes" || code=1
    return $code
}
part kubernetes "Kubernetes, build" build_kubernetes
part kubernetes "Kubernetes" on_kubernetes

# A newer Slurm, from a newer Debian: it needs a Python of its own to be usable there, as that of pyenv or uv is.
newer=$CACHE/slurm-24.11
make_newer() {
    [ ! -e "$newer" ] || return 0
    echo "a Debian 13 with Slurm 24.11 is made in $newer, and kept for the next time"
    rm -rf "$newer.new"
    local mirror needed=slurmctld,slurmd,slurmdbd,slurm-client,slurm-wlm-basic-plugins,slurm-wlm-mysql-plugin,munge,libffi8
    mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
    debootstrap --variant=minbase --include=$needed trixie "$newer.new" ${mirror:+"$mirror"} >"$CACHE/debootstrap.log" 2>&1 ||
        { tail -20 "$CACHE/debootstrap.log" >&2; return 1; }
    mv "$newer.new" "$newer"
}
on_newer_slurm() {
    chroot "$newer" dpkg-query -W -f 'Slurm ${Version}\n' slurmctld || return
    HOLDFAST_TEST_SLURM_ROOT=$newer suite tests/schedulers/slurm/test_jobs.py tests/schedulers/slurm/test_accounts.py \
        tests/schedulers/slurm/test_contract.py
}
part newer-slurm "Slurm 24.11, install" make_newer
part newer-slurm "Slurm 24.11" on_newer_slurm

# Ray has many packages of its own, so it is kept apart from those of the other tests.
make_ray() {
    [ ! -e .venv-ray/.ready ] || return 0
    echo "this installs Ray into .venv-ray, which is kept for the next time"
    "$PYTHON" -m venv .venv-ray || return
    .venv-ray/bin/python -m pip install --quiet --editable '.[ray]' hypothesis numpy psutil pytest pytest-timeout pytest-xdist || return
    touch .venv-ray/.ready
}
on_ray() {
    .venv-ray/bin/python -c 'import ray; print("Ray", ray.__version__)' || return
    PYTHON=.venv-ray/bin/python suite tests/schedulers/ray
}
part ray "Ray, install" make_ray
part ray "Ray" on_ray

echo "== how it went"
printf '%s\n' "${parts[@]}"
[ -z "$failed" ] || exit 1
