#!/bin/sh
# Checks that the C++ files have the form of .clang-format. The version is that of Debian 12, because
# others format differently. Run it in the repository's folder.
set -eu
find engine bindings module program tests fuzz examples \( -name '*.cpp' -o -name '*.h' \) \
  -exec clang-format-14 --dry-run -Werror {} +
