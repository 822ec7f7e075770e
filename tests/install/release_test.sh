#!/bin/sh
# Makes a release twice in different folders; both must have the same bytes:
#   release_test.sh BUILD SOURCE VERSION
# Compiles everything, the second time from ccache: skipped unless REDCO_TEST_FULL is set.
set -eu
build=$1 source=$2 version=$3
work=$build/release_test

skip() {
  echo "skipped: $1"
  exit 77
}
[ -n "${REDCO_TEST_FULL:-}" ] || skip "REDCO_TEST_FULL=1 makes a release twice"
git -C "$source" rev-parse --verify --quiet HEAD >/dev/null || skip "the sources are in no git repository"
for command in ccache dpkg-shlibdeps file patchelf unzip; do
  command -v $command >/dev/null || skip "there is no $command"
done

rm -rf "$work"
mkdir -p "$work/tmp" "$work/tmp_of_another"
trap 'rm -rf "$work"' EXIT
release() {
  TMPDIR=$work/$1 "$source/cmake/release.sh" "$version" "$work/$2"
}
if "$source/cmake/release.sh" 99.0.0 "$work/none" 2>"$work/error"; then exit 1; fi
grep -F "CMakeLists.txt of this commit has version $version, not 99.0.0" "$work/error"
release tmp first
release tmp_of_another second
diff "$work/first/SHA256SUMS" "$work/second/SHA256SUMS"
(cd "$work/second" && sha256sum --quiet --check SHA256SUMS)
for end in .tar.gz .changes.md .spdx.json _amd64.deb -manylinux_2_34_x86_64.whl; do
  find "$work/first" -name "*$version*$end" | grep -q . || {
    echo "the release has no $end"
    exit 1
  }
done
