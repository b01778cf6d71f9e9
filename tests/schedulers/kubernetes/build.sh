#!/bin/bash
# Builds Kubernetes 1.20's servers from Debian's source package, once, into a cache folder.
# Usage: build.sh FOLDER. The folder holds the servers and kubelet afterwards.
set -euo pipefail

out=$1
binaries=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
mkdir -p "$out"
exec 9>"$out/.lock" && flock 9  # another run of the tests may be building
whole=1
for binary in "${binaries[@]}"; do [ -x "$out/$binary" ] || whole=; done
[ -z "$whole" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source_list=(-o Dir::Etc::sourcelist="$work/src.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists")
mkdir -p "$work/lists/partial"
# Sources are usually not switched on: a list of our own leaves the machine's as it is.
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/src.sources"
apt-get "${source_list[@]}" update -qq
cd "$work"
apt-get "${source_list[@]}" source -qq --download-only kubernetes
dpkg-source -x kubernetes_*.dsc tree >/dev/null
cd tree
# One package at a time: the linker of one of these takes over a gigabyte.
GOFLAGS=-p=${HOLDFAST_BUILD_PARALLEL:-1} GOMAXPROCS=2 GOCACHE="$work/cache" CGO_ENABLED=0 \
    make WHAT="$(printf 'cmd/%s ' "${binaries[@]}")"
for binary in "${binaries[@]}"; do
    install -m 755 "_output/bin/$binary" "$out/$binary.new"
    mv "$out/$binary.new" "$out/$binary"
done
