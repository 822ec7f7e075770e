#!/bin/sh
# Checks which folders of engine/ include which. Run it in the repository's folder.
set -eu

# Includes that break a rule and are known: FILE:HEADER. Remove a line when its include is gone.
known='
engine/nn/linear.cpp:../sharding/tracer.h
engine/sharding/rules/fused_loss.cpp:../../nn/linear_cross_entropy.h
'

lua='<(lua|lauxlib|luajit)|[<"/](bindings|redco/(engine|host_type|prompt)\.h)'
train='[</"]train/|<redco/(dataset|deployer|optim|predictor|schedule|trainer)\.h'
sharding='[</"]sharding/|<redco/(sharding|sharding_report|sharding_rules|moves)\.h'
nn='[</"]nn/|<redco/(autocast|linear|linear_cross_entropy)\.h'

found=0
# check PATTERN WORDS FOLDER...: no file of the folders includes a header of the pattern.
check() {
  pattern=$1 words=$2
  shift 2
  includes=$(grep -rEn --include='*.h' --include='*.cpp' "^ *# *include *[<\"]" "$@" |
    grep -E "include *[^ ]*($pattern)" || true)
  while IFS=: read -r file line include; do
    [ -n "$file" ] || continue
    header=$(printf '%s' "$include" | sed 's/^[^<"]*[<"]//; s/[>"].*//')
    case $known in *"
$file:$header
"*) continue ;; esac
    echo "$file:$line: $header: $words"
    found=1
  done <<END
$includes
END
}

check "$lua" "engine/ may not include Lua or bindings/" engine
check "$train" "this folder may not include train/" engine/sharding engine/io engine/text \
  engine/mesh engine/core engine/store engine/random
check "$sharding" "nn/ may not include sharding/" engine/nn
check "$nn" "sharding/ may not include nn/" engine/sharding

# An exception that is not needed any more must go.
for entry in $known; do
  grep -qF "\"${entry#*:}\"" "${entry%%:*}" && continue
  echo "tests/lint/includes.sh: $entry is in the list, but the file does not include it"
  found=1
done
exit $found
