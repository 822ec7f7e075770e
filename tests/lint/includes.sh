#!/bin/sh
# Checks which folders of engine/ and bindings/ include which, and that redco.h includes every public
# header. Run it in the repository's folder.
set -eu

lua='<(lua|lauxlib|luajit)|[<"/](bindings|redco/(script_engine|script_error|host_type|prompt)\.h)'
train='[</"](train|optim)/|<redco/(dataset|deployer|optim|predictor|schedule|trainer)\.h'
sharding='[</"]sharding/|<redco/(sharding|sharding_report|sharding_rules)\.h'

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
    echo "$file:$line: $header: $words"
    found=1
  done <<END
$includes
END
}

check "$lua" "engine/ may not include Lua or bindings/" engine
check "$train" "this folder may not include train/ and optim/" engine/sharding engine/io engine/text \
  engine/mesh engine/core engine/kernels engine/formats engine/checkpoint engine/log engine/http
check '[</"]train/' "optim/ may not include train/" engine/optim
check "$sharding" "this folder may not include sharding/" engine/kernels engine/mesh engine/core engine/text engine/log engine/http
# The floors of bindings/: state, torch, data and training, host.
check '"(torch|data|training|host)/' "state/ may not include other folders" bindings/state
check '"(data|training|host)/' "torch/ may include state/ alone" bindings/torch
check '"(training|host)/' "data/ may include state/ and torch/" bindings/data
check '"(data|host)/' "training/ may include state/ and torch/" bindings/training

for header in engine/include/redco/*.h engine/include/redco/*.h.in; do
  name=redco/$(basename "${header%.in}")
  [ "$name" = redco/redco.h ] || grep -qF "#include <$name>" engine/include/redco/redco.h && continue
  echo "engine/include/redco/redco.h: does not include <$name>"
  found=1
done

exit $found
