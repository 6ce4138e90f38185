# Configuring and building one preset. Sourced after common.sh.

# What users run.
KVMESH_PROGRAMS=(kvmesh kvmesh-router kvmesh-shard kvmesh-meta kvmesh-blob)
build_release() { build_preset release "${KVMESH_PROGRAMS[@]}"; }

# build_preset PRESET [TARGET…]: quiet when there is nothing to do, progress lines otherwise.
build_preset() {
  local preset=$1 dir="$KVMESH_ROOT/build/$1"
  shift
  if [ ! -f "$dir/build.ninja" ]; then
    (cd "$KVMESH_ROOT" && step "$KVMESH_ROOT/build/logs/configure-$preset.log" "Configuring build/$preset" \
      cmake --preset "$preset")
  fi
  ninja -C "$dir" -n "$@" 2>/dev/null | grep -q 'no work to do' && return 0
  say "Building build/$preset (the first time takes minutes)"
  if [ -t 2 ]; then
    ninja -C "$dir" -j "$KVMESH_JOBS" "$@" >&2 || build_failed "$preset"
  else
    NINJA_STATUS='[%f/%t %es] ' ninja -C "$dir" -j "$KVMESH_JOBS" "$@" </dev/null >"$KVMESH_ROOT/build/logs/build-$preset.log" 2>&1 &
    follow_build $! "$KVMESH_ROOT/build/logs/build-$preset.log" || build_failed "$preset"
  fi
}

# Shows the newest line of a build's log twice a minute until the build ends; its exit status is the build's.
follow_build() {
  local pid=$1 log=$2 status=0
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    for _ in $(seq 30); do
      sleep 1
      kill -0 "$pid" 2>/dev/null || break
    done
    tail -n 1 "$log" | cut -c 1-140 >&2
  done
  wait "$pid" || status=$?
  trap - INT TERM
  if [ "$status" != 0 ]; then
    grep -E -A 12 'FAILED|error:' "$log" | tail -n 80 >&2 || tail -n 40 "$log" >&2
  fi
  return "$status"
}

build_failed() {
  fail "build/$1 did not build; the first error is above. If it names a file that was half written in an interrupted run, remove build/$1 and run the script again."
}

# Under TSan: what threads or the simulated mesh run through. Parsers and text have one thread.
KVMESH_TSAN_TESTS=(base_test blob_core_test compute_test meta_lookup_test router_core_test sampler_test shard_core_test sim_seeded_test skew_test)

# build_sanitized PRESET: the tests of a sanitizer preset.
build_sanitized() {
  if [ "$1" = tsan ]; then build_preset tsan "${KVMESH_TSAN_TESTS[@]}"; else build_preset "$1"; fi
}
