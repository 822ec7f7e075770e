#!/bin/sh
# run.sh NAME "PACKAGES" SCRIPT [ARGS]: runs a Python script with packages of PyPI, kept in the cache
# folder under NAME. Exit code 77 when they are not there and cannot be fetched: skipped.
set -eu
folder=${REDCO_CACHE:-$HOME/.cache/redco}/peers/$1
packages=$2
shift 2
if [ ! -f "$folder/.complete" ]; then
  command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
  # shellcheck disable=SC2086
  timeout 240 python3 -m pip install --quiet --root-user-action=ignore --target "$folder" $packages || {
    echo "skipped: cannot fetch the packages $packages"
    exit 77
  }
  touch "$folder/.complete"
fi
PYTHONPATH=$folder exec python3 "$@"
