#!/bin/sh
# Makes the wheel, builds the image of examples/cluster/Containerfile on a bare Debian 12, and trains
# in it:  image_test.sh BUILD SOURCE
# Takes minutes, 6 GB of disk and a network: skipped unless REDCO_TEST_FULL is set, and where it
# cannot be.
set -eu
build=$1 source=$2
. "$source/tests/install/helpers.sh"
needs "$build/image_test" buildah patchelf pip3
cmake --build "$build" --target wheel
mkdir "$work/context" "$work/wheels"
cp "$build"/redco_lua-*.whl "$source/examples/cluster/Containerfile" "$work/context"
sed '/^#/d; s/ --hash.*//' "$source/cmake/wheels.txt" >"$work/wheels.txt"
download_wheels "$work/wheels" 3.11 --requirement "$work/wheels.txt"
make_debian bookworm "$work/root.tar"

export BUILDAH_ISOLATION=chroot
images() {
  buildah --root "$work/images" --runroot "$work/run" --storage-driver vfs "$@"
}
base=$(images from scratch)
images add --quiet "$base" "$work/root.tar" /
images commit --quiet --rm "$base" localhost/bare
images build --quiet --network host --volume "$work/wheels:/downloaded:ro" \
  --build-arg BASE=localhost/bare \
  --build-arg "PIP_ARGS=--no-index --no-deps $(cd "$work/wheels" && printf '/downloaded/%s ' *.whl)" \
  --tag redco-lua "$work/context" >"$work/log" 2>&1 || {
  tail -n 25 "$work/log"
  exit 1
}
images images
container=$(images from --pull-never localhost/redco-lua)
inside() { images run --user 65534:65534 "$container" -- "$@"; }
if inside sh -c 'command -v python3'; then exit 1; fi
examples=/opt/redco/redco_lua/share/redco/examples
inside redco-lua --nproc 2 $examples/digits/train.lua --model=mlp --n_model_shards=2 \
  --workdir=/tmp/digits >"$work/out" 2>&1 || {
  cat "$work/out"
  exit 1
}
grep -E "Eval results .*accuracy (0\.9[6-9]|1)" "$work/out"
