#!/bin/sh
# CMake refuses a LibTorch outside of the range that CMakeLists.txt names, and says what it found and
# what it needs:  range_test.sh BUILD SOURCE
set -eu
build=$1 source=$2
work=$build/libtorch_range
trap 'rm -rf "$work"' EXIT
for version in 2.9.1 2.16.0; do
  rm -rf "$work"
  mkdir -p "$work/torch/include/ATen/core/dispatch" "$work/torch/include/torch" "$work/torch/lib"
  : >"$work/torch/include/ATen/core/dispatch/Dispatcher.h"
  : >"$work/torch/lib/libtorch_cpu.so"
  : >"$work/torch/lib/libc10.so"
  echo "$version" | awk -F . '{ print "#define TORCH_VERSION_MAJOR " $1 "\n#define TORCH_VERSION_MINOR " $2 \
    "\n#define TORCH_VERSION_PATCH " $3 }' >"$work/torch/include/torch/version.h"
  if cmake -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/torch" >"$work/output" 2>&1; then
    echo "CMake took LibTorch $version"
    exit 1
  fi
  for words in "\"$version\"" "required range is" "./bootstrap"; do
    tr '\n' ' ' <"$work/output" | tr -s ' ' | grep -qF "$words" || {
      cat "$work/output"
      echo "CMake's error about LibTorch $version does not have: $words"
      exit 1
    }
  done
done
