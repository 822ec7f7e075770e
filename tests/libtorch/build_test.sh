#!/bin/sh
# Builds the engine with a release of LibTorch from PyPI, and runs tests of sharded tensors, of the
# mesh and of products on it:  build_test.sh BUILD SOURCE TORCH CUDA_RUNTIME CUPTI
# The last three are requirements of pip; libtorch_cpu.so links the last two on every machine.
# Takes ten minutes of processor time, 3 GB of disk and a network: skipped unless REDCO_TEST_FULL is
# set, and where it cannot be.
set -eu
build=$1 source=$2
shift 2
work=$build/libtorch_test/$1

. "$source/tests/install/helpers.sh"
[ -n "${REDCO_TEST_FULL:-}" ] || skip "REDCO_TEST_FULL=1 builds the engine with the oldest and the newest LibTorch"
for command in pip3 unzip; do
  command -v $command >/dev/null || skip "there is no $command"
done
case "$(uname -s) $(uname -m)" in
  "Linux x86_64") ;;
  *) skip "the wheels are those for Linux on x86_64" ;;
esac

rm -rf "$work"
mkdir -p "$work/wheels" "$work/libtorch"
trap 'rm -rf "$work"' EXIT
download_wheels "$work/wheels" 3.11 "$@"
for wheel in "$work"/wheels/*.whl; do
  case ${wheel##*/} in
    torch-*) parts='torch/lib/libtorch_cpu.so torch/lib/libc10.so torch/lib/libg*.so* torch/include/*' ;;
    *) parts='nvidia/*' ;;
  esac
  # shellcheck disable=SC2086 # several patterns
  unzip -q -o "$wheel" $parts -d "$work/libtorch"
  rm "$wheel"
done

cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/libtorch/torch"
tests='sharding_test sharding_every_operator_test mesh_test matrix_products_test'
# shellcheck disable=SC2086 # several targets
ninja -C "$work/build" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" $tests
for test in $tests; do
  OMP_NUM_THREADS=1 "$work/build/tests/$test"
done
