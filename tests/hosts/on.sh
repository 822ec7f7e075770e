#!/bin/sh
# Runs a command on a host of two_hosts.sh: on.sh host1 COMMAND [ARGUMENT...]
host=$1
shift
exec nsenter --net="/run/netns/$host" "$@"
