#!/bin/sh
# Checks the shell scripts. Run it in the repository's folder.
set -eu
find examples program tests -name '*.sh' -exec shellcheck bootstrap .ci/run {} +
