#!/bin/sh
# Makes the Debian packages, installs them with apt on a bare Debian 12, and runs and builds with
# them there:  package_test.sh BUILD SOURCE VERSION
# Takes minutes and a network: skipped unless REDCO_TEST_FULL is set, and where it cannot be.
set -eu
build=$1 source=$2 version=$3
. "$source/tests/install/helpers.sh"
needs "$build/package_test" dpkg-shlibdeps file unshare
root=$work/root
mkdir "$work/deb"
make_debian bookworm "$root"

(cd "$build" && cpack -B "$work/deb" >"$work/cpack.log") || {
  cat "$work/cpack.log"
  exit 1
}
cp -r "$work"/deb/*.deb "$source/tests/install/consumer" "$root/tmp"
sed "s/VERSION/$version/" >"$root/tmp/check.sh" <<'END'
set -eux
export DEBIAN_FRONTEND=noninteractive HOME=/tmp
cd /tmp
apt-get -q update
apt-get -q -y --no-install-recommends install ./redco-lua_VERSION_*.deb
dpkg --verify redco-lua

user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
[ "$(user redco-lua --version)" = "redco-lua VERSION" ]
examples=/usr/share/redco/examples
user redco-lua $examples/text_to_text/train.lua --max-steps=2 --max-tgt-len=8 --n-held-out=8 \
  --workdir=/tmp/translation
[ -s translation/model/model.safetensors ]
user redco-lua --nproc 2 $examples/digits/train.lua --model=mlp --n_model_shards=2 --max-steps=20 \
  --workdir=/tmp/digits
[ -s digits/metrics.jsonl ]

apt-get -q -y --no-install-recommends install luajit
user luajit -e 'assert(require("redco").torch.ones({ 2 }):sum():item() == 2)'

apt-get -q -y --no-install-recommends install ./redco-lua-dev_VERSION_*.deb g++ make cmake pkg-config
g++ consumer/main.cpp -o by_pkg_config $(pkg-config --cflags --libs redco)
user ./by_pkg_config
cmake -S consumer -B by_cmake
cmake --build by_cmake
user by_cmake/engine_consumer

apt-get -q -y purge redco-lua
[ ! -e /usr/bin/redco-lua ] && [ ! -e /usr/lib/redco ] && [ ! -e /usr/include/redco ]
END
in_debian "$root" sh /tmp/check.sh
ls -sh "$work"/deb/*.deb
