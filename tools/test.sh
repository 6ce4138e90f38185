#!/usr/bin/env bash
# Sets up, builds and tests.
#   tools/test.sh                    every test; cores, parsers and text also under ASan+UBSan and TSan; the checks; the chart
#                                    in a real API server
#   tools/test.sh CTEST-ARGUMENTS    only those tests, e.g. tools/test.sh -L unit
#   tools/test.sh --all              also the long runs of tests, the whole product under ASan+UBSan, clang-tidy on the tests,
#                                    long fuzzing, and the image's root file system
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
. "$KVMESH_ROOT/tools/lib/packages.sh"
. "$KVMESH_ROOT/tools/lib/rust.sh"
. "$KVMESH_ROOT/tools/lib/fetch_model.sh"
. "$KVMESH_ROOT/tools/lib/build.sh"
. "$KVMESH_ROOT/tools/lib/deploy_tools.sh"
. "$KVMESH_ROOT/tools/lib/kube_apiserver.sh"

all=false
ctest_arguments=()
for argument in "$@"; do
  if [ "$argument" = --all ]; then all=true; else ctest_arguments+=("$argument"); fi
done

mkdir -p "$KVMESH_ROOT/build/logs"
install_packages "${KVMESH_BUILD_PACKAGES[@]}" "${KVMESH_TEST_PACKAGES[@]}"
install_rust
fetch_model
install_deploy_tools
build_preset dev
if [ ${#ctest_arguments[@]} = 0 ]; then
  build_sanitized asan
  build_sanitized tsan
  build_kube_apiserver
fi
if $all; then
  export KVMESH_TEST_ALL=1  # the long runs of tests that have some
  say "clang-tidy on everything"
  "$KVMESH_ROOT/tools/lint" --all || fail "clang-tidy has findings; they are above."
  say "The whole product under ASan and UBSan"
  "$KVMESH_ROOT/tools/lib/run_sanitized.sh" asan-all || fail "tests failed under ASan; they are listed above."
  say "Fuzzing"
  "$KVMESH_ROOT/tools/lib/run_fuzz.sh" 300
  say "The image's root file system"
  "$KVMESH_ROOT/tools/test-image" || fail "the image's root file system does not run a mesh; the reason is above."
fi

say "Running the tests"
cd "$KVMESH_ROOT"
ctest --test-dir build/dev --output-on-failure --no-tests=error -j "$KVMESH_JOBS" \
  ${ctest_arguments[@]+"${ctest_arguments[@]}"} </dev/null ||
  fail "some tests failed; they are listed above. One alone runs with: tools/test.sh -R NAME"
