#!/bin/sh
# Makes the wheel and runs it in Python environments on a bare Debian 12 and a bare Debian 13:
#   wheel_test.sh BUILD SOURCE VERSION
# Takes minutes, 4 GB of disk and a network: skipped unless REDCO_TEST_FULL is set, and where it
# cannot be.
set -eu
build=$1 source=$2 version=$3
. "$source/tests/install/helpers.sh"
needs "$build/wheel_test" patchelf pip3 unshare
cmake --build "$build" --target wheel
wheel=$(echo "$build/redco_lua-$version-"*.whl)
[ "$(stat -c %s "$wheel")" -lt 30000000 ] || {
  echo "$wheel has 30 MB or more"
  exit 1
}
# Of its two lines on tags the first is about files from outside, which torch has; this is the second.
code=0
"$source/tests/peers/environment.sh" -m auditwheel==6.8.2 auditwheel show "$wheel" >"$work/rules" || code=$?
if [ $code != 77 ]; then
  cat "$work/rules"
  tr '\n' ' ' <"$work/rules" | grep -qF 'constrains the platform tag to "manylinux_2_34_x86_64"'
fi

# pip refuses it where it cannot run.
for platform in musllinux_1_2_x86_64 manylinux_2_34_aarch64 manylinux_2_28_x86_64; do
  if pip3 download --quiet --dest "$work" --no-deps --only-binary=:all: --platform $platform \
    "$wheel" >"$work/refusal" 2>&1; then exit 1; fi
  grep -F 'is not a supported wheel on this platform' "$work/refusal"
done

sed '/^#/d; s/ --hash.*//' "$source/cmake/wheels.txt" >"$work/wheels.txt"
cat >"$work/check.sh" <<'END'
set -eux
export HOME=/nowhere  # cannot be written
cd /tmp
python3 -m venv env
pip() { env/bin/pip --quiet --disable-pip-version-check "$@" --no-index --no-deps; }
expect() {  # expect TEXT COMMAND...: it fails, and says this
  if message=$("${@:2}" 2>&1); then exit 1; fi
  case $message in *"$1"*) ;; *) echo "$message"; exit 1 ;; esac
}
pip install wheels/redco_lua-*.whl
expect "there is no torch in the Python environment /tmp/env" env/bin/redco-lua --version

# In another folder than the program.
pip install --target elsewhere wheels/torch-*.whl wheels/nvidia_*.whl
PYTHONPATH=elsewhere env/bin/redco-lua --nproc 2 -e 'print(require("redco").version)'
mv elsewhere/* env/lib/python3.*/site-packages

[ "$(env/bin/redco-lua --version)" = "redco-lua VERSION" ]
[ "$(env/bin/python -m redco_lua --version)" = "redco-lua VERSION" ]
share=$(env/bin/python -c 'import redco_lua; print(redco_lua.share)')
[ -s "$share/stubs/redco.lua" ] && [ -s env/share/man/man1/redco-lua.1 ]
PATH=$PWD/env/bin:$PATH
redco-lua "$share/examples/digits/train.lua" --model=mlp --workdir=/tmp/digits >out 2>&1
cat out
grep -qE "Eval results .*accuracy (0\.9[6-9]|1)" out
redco-lua --nproc 2 "$share/examples/digits/train.lua" --model=mlp --n_model_shards=2 \
  --max-steps=20 --workdir=/tmp/two

# What the program needs is in the wheel, torch or glibc and libstdc++.
for file in "$share"/../../bin/redco-lua "$share"/../../lib/*.so* "$share"/../../lib/redco/*; do
  if ldd "$file" | grep 'not found' | grep -v -e libcuda -e libcu -e libnv -e libnccl; then exit 1; fi
  if ldd "$file" | grep -E '=> /(usr/)?lib' |
    grep -vE 'lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+)\.so'; then exit 1; fi
done
cp -r "$share/../.." moved && ln -s "$(dirname "$share")/../../torch" torch  # no Python at all
env -i moved/bin/redco-lua --version

sed -i "s/^__version__ = .*/__version__ = '2.10.1'/" env/lib/python3.*/site-packages/torch/version.py
expect "VERSION of this wheel runs with torch 2.11, and" redco-lua --version
expect "is torch 2.10.1: /tmp/env/bin/python" redco-lua --version
rm env/lib/python3.*/site-packages/torch/version.py
expect "torch unknown" redco-lua --version
END
sed -i "s/VERSION/$version/" "$work/check.sh"

for system in "bookworm 3.11" "trixie 3.13"; do
  name=${system% *} python=${system#* } root=$work/root
  make_debian "$name" "$root" --include=python3-venv
  mkdir "$root/tmp/wheels"
  download_wheels "$root/tmp/wheels" "$python" --requirement "$work/wheels.txt"
  cp "$wheel" "$root/tmp/wheels"
  cp "$work/check.sh" "$root/tmp"
  in_debian "$root" setpriv --reuid=65534 --regid=65534 --clear-groups bash /tmp/check.sh
  echo "$name: passed"
  rm -rf "$root"
done
ls -sh "$wheel"
