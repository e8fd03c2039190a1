#!/bin/sh
# Stands in for several machines on this one: network namespaces joined by a bridge, each with a
# host name of its own, so that Open MPI takes them for nodes. Needs root and iproute2.
#
#   machines.sh up NAME N                  makes N of them
#   machines.sh down NAME                  removes them, with what runs there
#   machines.sh on NAME I COMMAND...       runs a command on machine I (from 1)
#   machines.sh link NAME I up|down        plugs machine I's cable in, or out
#   machines.sh ADDRESS COMMAND...         as Open MPI calls its remote shell (MACHINES=NAME)
set -eu

address=10.213.7

on() {
  exec ip netns exec "$1-$2" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$1-$2" \
    sh -c "$3"
}

case $1 in
  up)
    ip netns add "$2-switch"
    ip -n "$2-switch" link add bridge type bridge
    ip -n "$2-switch" link set bridge up
    for i in $(seq "$3"); do
      ip netns add "$2-$i"
      ip -n "$2-$i" link set lo up
      ip -n "$2-switch" link add "port$i" type veth peer name net0 netns "$2-$i"
      ip -n "$2-switch" link set "port$i" master bridge up
      ip -n "$2-$i" address add "$address.$i/24" dev net0
      ip -n "$2-$i" link set net0 up
    done
    ;;
  down)
    for name in $(ip netns list | awk -v prefix="$2-" 'index($1, prefix) == 1 { print $1 }'); do
      for process in $(ip netns pids "$name"); do
        # It may have ended since; one that has not keeps its name and is killed.
        kill -9 "$process" || [ ! -d "/proc/$process" ]
      done
      ip netns delete "$name"
    done
    ;;
  on)
    name=$2 i=$3
    shift 3
    on "$name" "$i" "$*"
    ;;
  link)
    ip -n "$2-switch" link set "port$3" "$4"
    ;;
  *)
    i=${1##*.}
    shift
    on "$MACHINES" "$i" "$*"
    ;;
esac
