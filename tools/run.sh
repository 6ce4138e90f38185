#!/usr/bin/env bash
# The main job from nothing: installs, builds, fetches a model and starts a mesh on this machine: a router, two shards,
# the arbiter and three storage tiers. Asks about a text of some 2,000 tokens, asks the same again, asks a follow-up
# question, and prints for each how much of the prompt was reused, from which tier, and the time to the first token.
#   tools/run.sh ["PROMPT"]      PROMPT is asked about the text
#   tools/run.sh --setup-only    installs, builds and fetches, no more
. "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
. "$KVMESH_ROOT/tools/lib/packages.sh"
. "$KVMESH_ROOT/tools/lib/rust.sh"
. "$KVMESH_ROOT/tools/lib/fetch_model.sh"
. "$KVMESH_ROOT/tools/lib/build.sh"

usage() {
  echo 'usage: tools/run.sh ["PROMPT"] [--setup-only]' >&2
  exit 2
}

prompt='What is this text about? Answer in two sentences.'
setup_only=false
prompts=0
for argument in "$@"; do
  case $argument in
    --setup-only) setup_only=true ;;
    --help | -h) usage ;;
    -*) echo "unknown option $argument" >&2; usage ;;
    *) prompt=$argument; prompts=$((prompts + 1)) ;;
  esac
done
[ "$prompts" -le 1 ] || { echo "one prompt, in quotes, is expected" >&2; usage; }

mkdir -p "$KVMESH_ROOT/build/logs"
install_packages "${KVMESH_BUILD_PACKAGES[@]}"
install_rust
build_release
fetch_model
if $setup_only; then
  say "Ready: tools/run.sh \"your prompt\" answers at once"
  exit 0
fi

kvmesh="$KVMESH_ROOT/build/release/bin/kvmesh"
data="$KVMESH_ROOT/build/run"
stop_mesh() {
  trap '' INT TERM
  "$kvmesh" down --data-dir "$data" >/dev/null 2>&1 || true
}
mkdir -p "$data"
stop_mesh # one that an interrupted run left behind
trap stop_mesh EXIT
trap 'exit 130' INT TERM

say "Starting a router, two shards, the arbiter and three tiers"
"$kvmesh" up --model "$KVMESH_MODEL" --shards 2 --data-dir "$data" --detach ||
  fail "the mesh did not start; the reason is above, the services' logs are in $data/logs."

python3 "$KVMESH_ROOT/tools/lib/three_turns.py" "$kvmesh" "$data" "$prompt" \
  "$KVMESH_ROOT/docs/architecture.md" "$KVMESH_ROOT/docs/session-states.md" "$KVMESH_ROOT/docs/generation-recovery.md"
