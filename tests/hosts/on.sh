#!/bin/sh
# Runs a command on a host of two_hosts.sh, as ssh does: on.sh host1 COMMAND [ARGUMENT...]
# What mpirun gives it is for a shell.
host=$1
shift
case $* in
  *orted*) set -- sh -c "$*" ;;
esac
exec nsenter --net="/run/netns/$host" "$@"
