#!/usr/bin/env bash
# Installs what a build needs, builds what users run, and leaves the programs without debugging symbols in
# build/release/stripped: build_release.sh [--packages-only]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$KVMESH_ROOT/tools/lib/packages.sh"
. "$KVMESH_ROOT/tools/lib/rust.sh"
. "$KVMESH_ROOT/tools/lib/build.sh"

mkdir -p "$KVMESH_ROOT/build/logs"
install_packages "${KVMESH_BUILD_PACKAGES[@]}"
install_rust
[ "${1-}" != --packages-only ] || exit 0
build_release
mkdir -p "$KVMESH_ROOT/build/release/stripped"
for program in "${KVMESH_PROGRAMS[@]}"; do
  strip -o "$KVMESH_ROOT/build/release/stripped/$program" "$KVMESH_ROOT/build/release/bin/$program"
done
