# shellcheck shell=sh
# Functions for the tests that make a bare Debian, or fetch a LibTorch; they source this file.

skip() {
  echo "skipped: $1"
  exit 77
}

# needs WORK COMMAND...: skips the test unless a bare Debian can be made and the commands are there.
# WORK is emptied, and removed at the end.
needs() {
  work=$1
  shift
  [ -n "${REDCO_TEST_FULL:-}" ] || skip "REDCO_TEST_FULL=1 makes a bare Debian and tries them in it"
  [ "$(id -u)" = 0 ] || skip "a bare Debian is made by root"
  for command in mmdebstrap "$@"; do
    command -v "$command" >/dev/null || skip "there is no $command"
  done
  # The mirror, and how to reach it, are those of this machine.
  # shellcheck disable=SC2016 # apt-get expands these
  mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "bookworm" && $2 == "main" { print $3; exit }')
  [ -n "$mirror" ] || skip "apt of this machine knows no Debian 12"
  rm -rf "$work"
  mkdir -p "$work"
  trap 'rm -rf "$work"' EXIT
  apt-config dump Acquire::http Acquire::https >"$work/apt.conf"
}

# make_debian NAME FILE_OR_FOLDER [OPTION]
make_debian() {
  # shellcheck disable=SC2086 # no option, or one
  mmdebstrap --quiet --variant=minbase ${3:-} --aptopt="$work/apt.conf" "$1" "$2" "$mirror" ||
    skip "no bare Debian ($1) could be made: is there a network?"
}

# in_debian FOLDER COMMAND...
in_debian() {
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --mount sh -euc '
    mount -t proc proc "$1/proc"
    mount --rbind /dev "$1/dev"
    exec chroot "$@"' sh "$@"
}

# download_wheels FOLDER PYTHON REQUIREMENT...: wheels for this Python, such as 3.11.
download_wheels() {
  folder=$1 python=$2
  shift 2
  TMPDIR=$folder pip3 download --quiet --dest "$folder" --no-deps --only-binary=:all: --implementation cp \
    --python-version "$python" --abi "cp$(echo "$python" | tr -d .)" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux2014_x86_64 --no-cache-dir \
    --disable-pip-version-check --no-input "$@" ||
    skip "pip could not download $*: is there a network?"
}
