#!/usr/bin/env bash
# Builds the libFuzzer programs and runs each on its own corpus for a while: run_fuzz.sh [SECONDS [NAME…]]
# What one finds is left in build/fuzz/found; make it a test, and put the input among the target's regressions.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$KVMESH_ROOT/tools/lib/packages.sh"
. "$KVMESH_ROOT/tools/lib/build.sh"
seconds=${1:-300}
[ $# = 0 ] || shift

mkdir -p "$KVMESH_ROOT/build/logs" "$KVMESH_ROOT/build/fuzz/found"
install_packages "${KVMESH_FUZZ_PACKAGES[@]}"
build_preset fuzz
names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(cd "$KVMESH_ROOT/build/fuzz/fuzz" && find . -maxdepth 1 -type f -perm -u+x -printf '%f\n' | sort)
[ ${#names[@]} -gt 0 ] || fail "build/fuzz has no fuzz program."

cd "$KVMESH_ROOT"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
for name in "${names[@]}"; do
  corpus="build/fuzz/corpus/$name"
  mkdir -p "$corpus"
  while read -r folder; do
    [ ! -d "$folder" ] || find "$folder" -type f -size -256k -exec cp -n -t "$corpus" {} +
  done <"build/fuzz/fuzz/$name.corpus"
  say "$name for $seconds s"
  "build/fuzz/fuzz/$name" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/found/ "$corpus" >"build/logs/fuzz-$name.log" 2>&1 </dev/null || {
    tail -n 40 "build/logs/fuzz-$name.log" >&2
    fail "$name found something: the input is in build/fuzz/found, the whole output in build/logs/fuzz-$name.log."
  }
  grep -E 'number_of_executed_units|new_units_added' "build/logs/fuzz-$name.log" >&2
done
