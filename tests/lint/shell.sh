#!/bin/sh
# Checks the shell scripts. Run it in the repository's folder.
set -eu
find cmake examples fuzz program tests '(' -name '*.sh' -o -name '*.sbatch' ')' -exec shellcheck bootstrap .ci/run {} +
