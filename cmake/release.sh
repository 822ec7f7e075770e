#!/bin/sh
# Makes the files of a release from the commit that is checked out:
#
#   cmake/release.sh VERSION [FOLDER]        (FOLDER: build/release-VERSION)
#
# They are the source archive, the wheel, the Debian packages, the SPDX bill of materials, the
# changelog's part, and SHA256SUMS. The same commit gives the same bytes, whatever folder, time and
# user, on machines with the same packages of Debian and the same LibTorch. Compiles everything, in a
# fresh clone. Needs what `./bootstrap package` and `./bootstrap wheel` install, and for the plug-in
# for several GPUs `REDCO_CUDA=1 ./bootstrap` first, or a CUDA toolkit with NCCL.
#
# REDCO_LIBTORCH names the LibTorch; otherwise it is that of ./bootstrap.
set -eu

die() {
  echo "release.sh: $1" >&2
  exit 1
}
[ $# = 1 ] || [ $# = 2 ] || die "usage: cmake/release.sh VERSION [FOLDER]"
version=$1
cd "$(dirname "$0")/.."
folder=${2:-build/release-$version}
libtorch=${REDCO_LIBTORCH:-${REDCO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/redco}/libtorch-2.11.0/torch}
[ -e "$libtorch/lib/libtorch_cpu.so" ] || die "there is no LibTorch at $libtorch: run ./bootstrap"
libtorch=$(cd "$libtorch" && pwd)

# The version stands in CMakeLists.txt; the changelog must know it.
stands=$(git show HEAD:CMakeLists.txt | sed -n 's/^project(redco VERSION \([0-9.]*\).*/\1/p')
[ "$stands" = "$version" ] || die "CMakeLists.txt of this commit has version $stands, not $version"
changes=$(git show HEAD:CHANGELOG.md |
  awk -v heading="## [$version]" 'index($0, heading) == 1 { on = 1; print; next } /^## / { on = 0 } on')
[ -n "$changes" ] || die "CHANGELOG.md of this commit has no part ## [$version]"
[ -z "$(git status --porcelain --untracked-files=no)" ] ||
  echo "release.sh: changes that are not committed are left out" >&2

[ ! -e "$folder" ] || die "$folder exists"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$folder/build.log

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022
name=redco-lua-$version
git archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$folder/$name.tar.gz"
printf '%s\n' "$changes" >"$folder/$name.changes.md"

# Neither the folder of the sources nor that of LibTorch gets into a file: their names are mapped, the
# search paths are those of the installation from the start, and the linker makes no build-id, which
# would depend on them. With ccache a second folder compiles nothing.
git clone --quiet . "$work/source"
export CCACHE_BASEDIR="$work"
export LD_LIBRARY_PATH="$work/build:$libtorch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
linker=-Wl,--build-id=none
{
  cmake -G Ninja -S "$work/source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DREDCO_TESTS=OFF \
    "-DCMAKE_PREFIX_PATH=$libtorch" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON \
    "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$work=. -ffile-prefix-map=$libtorch=libtorch" \
    "-DCMAKE_EXE_LINKER_FLAGS=$linker" "-DCMAKE_SHARED_LINKER_FLAGS=$linker" \
    "-DCMAKE_MODULE_LINKER_FLAGS=$linker" &&
    cmake --build "$work/build" ${CMAKE_BUILD_PARALLEL_LEVEL:+--parallel "$CMAKE_BUILD_PARALLEL_LEVEL"} \
      --target all wheel &&
    (cd "$work/build" && cpack -B "$folder")
} >"$log" 2>&1 || {
  tail -n 25 "$log" >&2
  die "the build failed; all of its output is in $log"
}
rm -r "$folder/_CPack_Packages"
cp "$work"/build/*.whl "$folder"
unzip -p "$folder"/*.whl '*/sboms/*' >"$folder/$name.spdx.json"

# No path of this machine inside.
for file in "$folder"/*.whl "$folder"/*.deb; do
  mkdir "$work/inside"
  case $file in
    *.whl) unzip -q "$file" -d "$work/inside" ;;
    *.deb) dpkg-deb -R "$file" "$work/inside" ;;
  esac
  if grep -rlF -e "$work" -e "$libtorch" "$work/inside"; then
    die "these files of ${file##*/} have a path of this machine inside"
  fi
  rm -r "$work/inside"
done

mv "$log" "$work"
(cd "$folder" && sha256sum -- * >"$work/sums" && mv "$work/sums" SHA256SUMS && cat SHA256SUMS)
