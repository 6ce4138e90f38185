#!/usr/bin/env bash
# Builds the libFuzzer programs and runs each on its own corpus for a while: run_fuzz.sh [--keep] [SECONDS [NAME…]]
# What one finds is left in build/fuzz/found; make it a test, and put the input among the target's regressions.
# With --keep the first folder of each corpus then holds the few inputs that reach all that was reached, and no others.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$KVMESH_ROOT/tools/lib/packages.sh"
. "$KVMESH_ROOT/tools/lib/build.sh"
keep=false
[ "${1:-}" != --keep ] || { keep=true; shift; }
seconds=${1:-300}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || fail "\"$seconds\" is no number of seconds."
[ $# = 0 ] || shift

mkdir -p "$KVMESH_ROOT/build/logs" "$KVMESH_ROOT/build/fuzz/found"
install_packages "${KVMESH_BUILD_PACKAGES[@]}" "${KVMESH_TEST_PACKAGES[@]}" "${KVMESH_FUZZ_PACKAGES[@]}"
build_preset fuzz fuzz_programs
names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(cd "$KVMESH_ROOT/build/fuzz/fuzz" && find . -maxdepth 1 -type f -perm -u+x -printf '%f\n' | sort)
[ ${#names[@]} -gt 0 ] || fail "build/fuzz has no fuzz program."

cd "$KVMESH_ROOT"
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1

# fuzz_target NAME: runs one on build/fuzz/corpus/NAME, which begins with its kept inputs.
fuzz_target() {
  local name=$1 corpus="build/fuzz/corpus/$1" log="build/logs/fuzz-$1.log" folder
  [ -f "build/fuzz/fuzz/$name.corpus" ] || fail "there is no fuzz program \"$name\"."
  mkdir -p "$corpus"
  while read -r folder; do
    [ ! -d "$folder" ] || find "$folder" -type f -size -256k -exec cp -n -t "$corpus" {} +
  done <"build/fuzz/fuzz/$name.corpus"
  say "$name for $seconds s"
  "build/fuzz/fuzz/$name" -max_total_time="$seconds" -timeout=120 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/found/ "$corpus" >"$log" 2>&1 </dev/null || {
    tail -n 40 "$log" >&2
    fail "$name found something: the input is in build/fuzz/found, the whole output in $log."
  }
  grep -E 'number_of_executed_units|new_units_added' "$log" >&2 || fail "$name did not run: see $log."
}

# keep_corpus NAME: a least set of inputs, one for each branch that any input takes.
keep_corpus() {
  local name=$1 kept least="build/fuzz/least/$1"
  kept=$(head -n 1 "build/fuzz/fuzz/$name.corpus")
  rm -rf "$least"
  mkdir -p "$least" "$kept"
  step "build/logs/fuzz-merge-$name.log" "$name: choosing the inputs to keep" \
    "build/fuzz/fuzz/$name" -set_cover_merge=1 -use_counters=0 -timeout=120 "$least" "build/fuzz/corpus/$name"
  find "$kept" -type f -delete
  find "$least" -type f -exec cp -t "$kept" {} +
  say "$kept: $(find "$kept" -type f | wc -l) files, $(du -bs "$kept" | cut -f 1) bytes"
}

for name in "${names[@]}"; do
  fuzz_target "$name"
  if $keep; then keep_corpus "$name"; fi
done
