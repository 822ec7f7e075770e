#!/bin/sh
# Checks that each link of the documentation leads to a file and a heading, and that the site has each
# page. Run it in the repository's folder.
set -eu
exec python3 docs/site/pages.py
