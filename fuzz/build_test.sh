#!/bin/sh
# Builds the preset `fuzz`, and lets each target look for failures for some seconds:
#   build_test.sh BUILD SOURCE LIBTORCH TARGET...
# Takes minutes and clang: skipped unless REDCO_TEST_FULL is set, and where there is none.
set -eu
build=$1 source=$2 libtorch=$3
shift 3
work=$build/fuzz_test

skip() {
  echo "skipped: $1"
  exit 77
}
[ -n "${REDCO_TEST_FULL:-}" ] || skip "REDCO_TEST_FULL=1 builds the preset fuzz"
command -v clang++ >/dev/null || skip "there is no clang++"
rm -rf "$work"
mkdir -p "$work/corpus"
trap 'rm -rf "$work"' EXIT
echo 'int main() {}' | clang++ -x c++ -fsanitize=address,undefined - -o "$work/program" ||
  skip "clang++ has no sanitizers (Debian package: libclang-rt-14-dev)"

(cd "$source" && cmake --preset fuzz -B "$work/build" -DCMAKE_PREFIX_PATH="$(realpath "$libtorch")")
cmake --build "$work/build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
cd "$work"
for target; do
  mkdir "corpus/$target"
  echo "$target"
  "build/fuzz_$target" -max_total_time=10 -verbosity=0 "corpus/$target" "$source/fuzz/corpus/$target"
done
