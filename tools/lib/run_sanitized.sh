#!/usr/bin/env bash
# Builds one sanitizer preset if needed and runs its tests: run_sanitized.sh PRESET
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$KVMESH_ROOT/tools/lib/build.sh"
mkdir -p "$KVMESH_ROOT/build/logs"
build_sanitized "$1"
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=second_deadlock_stack=1
selection=()
[ "$1" != tsan ] || selection=(-R "^($(IFS='|' && echo "${KVMESH_TSAN_TESTS[*]}"))\$")
cd "$KVMESH_ROOT"
exec ctest --test-dir "build/$1" --output-on-failure --no-tests=error -j "$KVMESH_JOBS" ${selection[@]+"${selection[@]}"}
