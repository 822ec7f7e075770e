#!/bin/sh
# Runs a peer test in Python with packages of its own:
#   environment.sh SCRIPT "PACKAGE==VERSION ..." [ARGUMENT...]
# The packages live in one environment for each list of them, in the cache folder. Where it cannot
# be made, for want of Python or a package index, the reason is told and the exit code is 77, which
# the tests count as skipped.
set -eu

script=$1
packages=$2
shift 2

cache=${REDCO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/redco}
environment=$cache/peers/$(printf '%s' "$packages" | cksum | cut -d' ' -f1)

skip() {
  echo "skipped: $1" >&2
  exit 77
}

# Tests that run at the same time share environments: one makes it, the others wait.
mkdir -p "$cache/peers"
exec 9>"$environment.lock"
flock 9
# `complete` is made last: what a killed run left is made again.
if [ ! -e "$environment/complete" ]; then
  log=$environment.log
  python3 -m venv --clear "$environment" >"$log" 2>&1 ||
    skip "python3 -m venv does not work: $(tail -n 1 "$log")"
  # LibTorch's wheel, which the build has fetched, is also the package.
  mkdir -p "$cache/wheels"
  # shellcheck disable=SC2086 # a list of packages
  timeout 900 "$environment/bin/pip" install --disable-pip-version-check --retries 1 \
    --find-links "$cache/wheels" $packages >"$log" 2>&1 ||
    skip "pip cannot install $packages: $(tail -n 1 "$log")"
  touch "$environment/complete"
fi
exec 9>&-
exec "$environment/bin/python" "$script" "$@"
