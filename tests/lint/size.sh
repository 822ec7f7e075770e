#!/bin/sh
# Prints the project's lines by room, its largest files, and its largest functions if universal-ctags
# is installed: size.sh [COMMIT], which also prints the totals of that commit. Run it in the
# repository's folder. It is no test: the changelog of each release has the totals.
set -eu

sources='engine bindings program module fuzz lua examples'

# Prints "LINES FILE" of the files of a list on standard input.
lines_of() { tr '\n' '\0' | xargs -0 wc -l | grep -v ' total$' || true; }
code() { git ls-files -- "$@" | grep -E '\.(cpp|h|h\.in|cu|lua|sh|py)$'; }
recorded() {
  git ls-files -- tests | grep -E '\.(txt|json|csv|toml)$' | grep -v CMakeLists
}
sum() { awk '{ lines += $1; files += 1 } END { printf "%7d lines in %4d files", lines, files }'; }

echo "Lines by room:"
for top in engine bindings lua/redco; do
  git ls-files -- $top | grep -E '\.(cpp|h|h\.in|cu|lua)$' | lines_of |
    awk -v top="$top/" '{ rest = substr($2, length(top) + 1); n = index(rest, "/")
      room = top (n ? substr(rest, 1, n - 1) : "")
      lines[room] += $1; files[room] += 1 }
      END { for (room in lines) printf "%7d lines in %4d files  %s\n", lines[room], files[room], room }' |
    sort -k6
done
for room in program module fuzz examples tests; do
  echo "$(code $room | lines_of | sum)  $room"
done

echo "In all:"
# shellcheck disable=SC2086
echo "$(code $sources | lines_of | sum)  sources"
echo "$(code tests | lines_of | sum)  tests"
echo "$(recorded | lines_of | sum)  recorded data of tests"
if [ $# -gt 0 ]; then
  # shellcheck disable=SC2086
  git diff --numstat "$1" -- $sources | awk '{ added += $1; gone += $2 }
    END { printf "%+7d lines of sources since then (+%d -%d)\n", added - gone, added, gone }'
  git diff --numstat "$1" -- tests | awk '{ added += $1; gone += $2 }
    END { printf "%+7d lines of tests and their data (+%d -%d)\n", added - gone, added, gone }'
fi

echo "Largest files:"
# shellcheck disable=SC2086
code $sources | lines_of | sort -rn | head -10

command -v ctags > /dev/null || exit 0
echo "Largest functions:"
# shellcheck disable=SC2086
code $sources | ctags -L - -f - --fields=+ne --kinds-c++=f --kinds-lua=f 2> /dev/null |
  awk -F '\t' '{ line = end = 0
    for (i = 4; i <= NF; ++i) { if ($i ~ /^line:/) line = substr($i, 6); if ($i ~ /^end:/) end = substr($i, 5) }
    if (end > line) printf "%7d %s in %s:%d\n", end - line + 1, $1, $2, line }' | sort -rn | head -10
