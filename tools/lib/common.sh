# Sourced by every script of tools/: where the repository is, how progress and failures are told.
set -euo pipefail

KVMESH_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
KVMESH_JOBS=${KVMESH_JOBS:-$(nproc)}

# Objects of another checkout of the same sources are reused.
export CCACHE_BASEDIR="$KVMESH_ROOT" CCACHE_NOHASHDIR=1

say() { printf '==> %s\n' "$*" >&2; }

# fail SENTENCE: ends the script; the sentence says what to do.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# step LOG WHAT COMMAND…: runs COMMAND with its output in LOG; shows the output's end when it fails.
step() {
  local log=$1 what=$2
  shift 2
  mkdir -p "$(dirname "$log")"
  say "$what"
  if ! "$@" >"$log" 2>&1 </dev/null; then
    tail -n 40 "$log" >&2
    fail "$what: failed. The whole output is in $log. Run the script again once the cause is gone."
  fi
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "installing packages needs root: run this script as root, or install sudo."
  fi
}
