# The one list of Debian packages (names valid in Debian 12 and 13), and their installation.
# Sourced after common.sh.

# To build and run the product.
KVMESH_BUILD_PACKAGES=(
  ca-certificates g++ cmake ninja-build pkg-config ccache mold git python3 python3-pip
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc  # RPC
  libabsl-dev libgoogle-glog-dev libcli11-dev nlohmann-json3-dev prometheus-cpp-dev libssl-dev
  libisal-dev  # CRC32C of slabs
  libtorch-dev libopenblas0-pthread  # the default BLAS is the reference one, eighty times slower
)

# What the built programs load, on Debian 12: of the image and of plain machines. tools/test-image runs them with these alone.
KVMESH_RUNTIME_PACKAGES=(
  libgrpc++1.51 libprotobuf32 libabsl20220623 libgoogle-glog0v6 libprometheus-cpp-core1.0 libssl3 libisal2
  libtorch1.13 libopenblas0-pthread
)

# Further ones, for tests and checks.
KVMESH_TEST_PACKAGES=(
  libgtest-dev libgmock-dev libbenchmark-dev
  xz-utils                                       # large test data is kept compressed
  openssl                                        # certificates for tests
  python3-protobuf python3-grpcio                # tools/api-docs; the example client in Python
  prometheus                                     # checks rules, and scrapes a mesh
  jq                                             # of docs/debugging.md, which runs as a test
)
if grep -q '^VERSION_ID="13"' /etc/os-release 2>/dev/null; then
  KVMESH_TEST_PACKAGES+=(clang-tidy-19)  # no LLVM 14 there: tools/lint takes this one, tools/format is passed over
else
  KVMESH_TEST_PACKAGES+=(clang-format-14 clang-tidy-14)
fi

# For tools/test-image.
KVMESH_IMAGE_PACKAGES=(debootstrap)

# For tools/test-kube.
KVMESH_KUBE_PACKAGES=(etcd-server)

# For libFuzzer.
KVMESH_FUZZ_PACKAGES=(clang-14 libclang-rt-14-dev)

packages_missing() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

# install_packages PACKAGE…: installs what is missing; nothing missing costs nothing.
install_packages() {
  command -v dpkg-query >/dev/null || fail "this script installs Debian packages; on another system install these by hand: $*"
  local missing
  mapfile -t missing < <(packages_missing "$@")
  [ ${#missing[@]} -gt 0 ] || return 0
  # An interrupted earlier installation is finished first; harmless otherwise.
  step "$KVMESH_ROOT/build/logs/dpkg.log" "Checking the package system" as_root dpkg --configure -a
  step "$KVMESH_ROOT/build/logs/apt-update.log" "Refreshing the list of packages" \
    as_root apt-get -o Acquire::Retries=3 update
  step "$KVMESH_ROOT/build/logs/apt-install.log" "Installing ${missing[*]} (minutes)" \
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 \
    -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"
}
