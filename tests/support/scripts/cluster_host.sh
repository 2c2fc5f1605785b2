#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first process of a test host (support/cluster.py), in fresh network, mount, UTS, IPC and PID namespaces.
#
#   cluster_host.sh NAME FOLDER SSHD SHARED-FOLDER...
#
# FOLDER has what the hosts of the cluster have in common: hosts, ssh/, sshd_config. It says "ready" and reads "go" when
# the network interface is there, then "up" when sshd listens. The end of stdin powers the host off: when process 1 of
# the namespace ends, the kernel ends all others in it, and removes what was mounted.
set -euo pipefail
name=$1 folder=$2 sshd=$3
shift 3

hostname "$name"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
mount --bind "$folder/hosts" /etc/hosts
mkdir -p ~/.ssh
mount --bind "$folder/ssh" ~/.ssh
# A /tmp of the host's own, in which the shared folders have their places again.
mount -t tmpfs -o mode=1777 tmpfs /mnt
for shared in "$folder" "$@"; do
  case $shared in /tmp/*)
    mkdir -p "/mnt${shared#/tmp}"
    mount --rbind "$shared" "/mnt${shared#/tmp}"
    ;;
  esac
done
mount --rbind /mnt /tmp

echo ready
read -r _
ip link set lo up
"$sshd" -f "$folder/sshd_config" -E /run/sshd.log
until [[ -s /run/sshd.pid ]]; do sleep 0.01; done  # it listens then, which it need not when the command returns
echo up
while read -r _; do :; done
