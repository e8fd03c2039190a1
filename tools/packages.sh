# Sourced by the scripts: Debian packages that zero3 is built with.

build_packages=(build-essential cmake ninja-build libgtest-dev libdnnl-dev ocl-icd-opencl-dev libfmt-dev libspdlog-dev
  libcli11-dev nlohmann-json3-dev libopenmpi-dev openmpi-bin liburing-dev)

# install_missing PACKAGE...: installs those that are not there, and says which. Works as root or with sudo.
install_missing() {
  local missing=() package
  if ! command -v apt-get >/dev/null; then
    echo "This script installs packages with apt-get, which is not here. Install what corresponds to:" >&2
    echo "  $*" >&2
    return 1
  fi
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "Installing: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Not root, and no sudo: install these packages yourself: ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get -qq update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}
