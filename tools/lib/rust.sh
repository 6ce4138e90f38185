# A Rust new enough for the tokenizers: the cargo on the PATH, else Debian's. Sourced after packages.sh.

KVMESH_RUST_MINOR_MIN=85

cargo_is_new_enough() {
  local version
  version=$(cargo --version 2>/dev/null) || return 1
  [[ $version =~ ^cargo\ 1\.([0-9]+)\. ]] || return 1
  ((BASH_REMATCH[1] >= KVMESH_RUST_MINOR_MIN))
}

install_rust() {
  cargo_is_new_enough && return 0
  # Debian 12 has a current Rust under names of its own; Debian 13's plain one is new enough.
  if grep -q '^VERSION_ID="12"' /etc/os-release 2>/dev/null; then
    install_packages rustc-web cargo-web
  else
    install_packages rustc cargo
  fi
  hash -r
  cargo_is_new_enough || fail "cargo 1.$KVMESH_RUST_MINOR_MIN or newer is needed, but $(command -v cargo || echo 'no cargo') is found: put a newer one on the PATH."
}
