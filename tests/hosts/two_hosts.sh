#!/bin/sh
# Runs a command beside two hosts of its own, host1 and host2, which a cable connects:
#   two_hosts.sh COMMAND [ARGUMENT...]
# They are network namespaces with the addresses 10.77.0.1 and 2, fd77::1 and 2; on.sh runs commands
# there. Their names are in /etc/hosts; the name server, 10.77.0.3, never answers. All else is
# shared, but /run is empty and goes with the command, as do all processes that it leaves. Where the
# rights for that are missing the exit code is 77, which the tests count as skipped.
set -eu

skip() {
  echo "skipped: $1" >&2
  exit 77
}

if [ "$1" != --inside ]; then
  for each in unshare nsenter ip; do
    command -v $each >/dev/null || skip "the command $each is missing"
  done
  reason=$(unshare --mount --net --pid --uts --fork true 2>&1) ||
    skip "no namespaces can be made here: $reason"
  exec unshare --mount --net --pid --uts --fork --mount-proc --kill-child "$0" --inside "$@"
fi
shift

set_up() {
  mount -t tmpfs tmpfs /run &&
    mkdir /run/netns &&
    hostname host1 &&
    ip link set lo up || return
  for i in 1 2; do
    ip netns add host$i && ip -n host$i link set lo up || return
  done
  ip link add cable1 netns host1 type veth peer name cable2 netns host2 || return
  for i in 1 2; do
    ip -n host$i address add 10.77.0.$i/24 dev cable$i || return
    # IPv6 may be off.
    ip -n host$i address add fd77::$i/64 dev cable$i nodad 2>/dev/null || true
    ip -n host$i link set cable$i up &&
      ip -n host$i neighbour add 10.77.0.3 lladdr 02:00:00:00:00:03 dev cable$i || return
  done
  printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 host1' '10.77.0.2 host2' >/run/hosts &&
    mount --bind /run/hosts /etc/hosts &&
    echo 'nameserver 10.77.0.3' >/run/resolv.conf || return
  # It may be a link into what /run was.
  [ ! -e /etc/resolv.conf ] || mount --bind /run/resolv.conf /etc/resolv.conf
}
reason=$(set_up 2>&1) || skip "two hosts cannot be made here: $reason"
"$@"
