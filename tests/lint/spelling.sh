#!/bin/sh
# Checks the spelling and the phrases of the documentation. Run it in the repository's folder.
set -eu

files=$(find README.md CHANGELOG.md CONTRIBUTING.md docs examples fuzz tests -name '*.md')
found=0

# shellcheck disable=SC2086 # names without blanks
codespell --ignore-words-list=rouge,fpr,flor $files || found=1

# The reference is generated from the help texts and has no list of phrases yet.
# shellcheck disable=SC2086
files=$(printf '%s\n' $files | grep -v '^docs/reference/')
phrases="\b(of|on) (its|their|his|her|your|our|one.s) own\b|\bto be had\b|\bso many\b"
phrases="$phrases|\b[Ll](ie|ies|ay)\b|\b[Tt]ells?\b|(^|[.:] )(What|That which) "
# shellcheck disable=SC2086
if grep -nE "$phrases" $files; then
  echo "these lines have phrases that the style excludes: see tests/lint/spelling.sh"
  found=1
fi
exit $found
