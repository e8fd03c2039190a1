#!/usr/bin/env bash
# Builds zero3 and runs all of its tests. Installs missing packages (Debian, Ubuntu); everything else stays under build/.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/packages.sh

install_missing "${build_packages[@]}" iproute2
cmake --preset release
cmake --build --preset release
ctest --preset release
