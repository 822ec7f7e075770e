#!/bin/sh
# Builds the documentation as a site: build.sh [FOLDER], by default build/site. Open html/index.html
# in it: it needs no server. The generator, Zensical (MIT), comes from PyPI at the first time.
set -eu
cd "$(dirname "$0")/../.."
exec tests/peers/environment.sh docs/site/build.py "zensical==0.0.73" "${1:-build/site}"
