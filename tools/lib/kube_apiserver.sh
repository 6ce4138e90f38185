# A real kube-apiserver for tools/test-kube, built from its Go module into build/tools/bin. Sourced after deploy_tools.sh.

KVMESH_KUBERNETES_MINOR=37
KVMESH_KUBERNETES_PATCH=2

# Leaves build/tools/bin/kube-apiserver; four minutes of two processors and 3 GB of disk, once.
build_kube_apiserver() {
  local binary="$KVMESH_TOOLS/bin/kube-apiserver" stamp="$KVMESH_TOOLS/bin/kube-apiserver.version"
  local version="v1.$KVMESH_KUBERNETES_MINOR.$KVMESH_KUBERNETES_PATCH" libraries="v0.$KVMESH_KUBERNETES_MINOR.$KVMESH_KUBERNETES_PATCH"
  [ -x "$binary" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$version" ] && return 0
  install_go
  local folder="$KVMESH_TOOLS/src/kube-apiserver" kubernetes
  mkdir -p "$folder"
  say "Fetching the sources of Kubernetes $version"
  kubernetes=$(fetch_go_module "k8s.io/kubernetes@$version") || fail "k8s.io/kubernetes@$version cannot be fetched; the reason is above."
  # Its libraries are required at v0.0.0 there, and replaced by folders that only its own repository has.
  {
    printf 'module kvmesh.test/kube-apiserver\n\n%s\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n' \
      "$(grep -m 1 '^go ' "$kubernetes/go.mod")" "$version"
    sed -nE "s|^\s+(k8s\.io/[a-z-]+) v0\.0\.0( .*)?$|\t\1 => \1 $libraries|p" "$kubernetes/go.mod"
    printf ')\n'
  } >"$folder/go.mod"
  cp "$kubernetes/cmd/kube-apiserver/apiserver.go" "$folder/main.go"
  rm -f "$folder/go.sum"
  local flags="-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$KVMESH_KUBERNETES_MINOR"
  step "$KVMESH_ROOT/build/logs/build-kube-apiserver.log" "Building kube-apiserver $version (minutes the first time)" \
    env CGO_ENABLED=0 GOFLAGS=-mod=mod nice -n 10 go build -C "$folder" -p "$KVMESH_JOBS" -ldflags "-s -w $flags" -o "$binary" .
  echo "$version" >"$stamp"
}
