#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The start of a training container: puts the keys in their places, then runs its arguments, by default sshd.
#
#   entrypoint.sh COMMAND...     run it when the keys are there
#   entrypoint.sh make-keys      only make the keys
#
# All containers of a job need the same keys: one with which they log in to each other, and one by which they know each
# other. They are taken from /keys/pair. If this is not there yet, they are made there, so containers of one machine can
# share an empty volume. For several machines, make them once and copy the folder.
set -eu
keys=/keys/pair

make_keys() {
  umask 077
  new=$(mktemp -d /keys/new.XXXXXX) || {
    echo "entrypoint: there are no keys in $keys, and none can be made there" >&2
    echo "hint: mount a folder at /keys that can be written, or that holds the keys; \`make-keys\` makes them" >&2
    exit 1
  }
  ssh-keygen -q -t ed25519 -N '' -C horovod -f "$new/id_ed25519"
  ssh-keygen -q -t ed25519 -N '' -C horovod -f "$new/host_key"
  # Another container may be as far. Only one of the folders gets the name.
  mv --no-target-directory "$new" "$keys" 2>/dev/null || rm -r "$new"
  test -d "$keys"
}

place_keys() {  # USER HOME
  test -d "$2" || return 0
  install -d -m 700 -o "$1" -g "$1" "$2/.ssh"
  install -m 600 -o "$1" -g "$1" "$keys/id_ed25519" "$2/.ssh/id_ed25519"
  install -m 600 -o "$1" -g "$1" "$keys/id_ed25519.pub" "$2/.ssh/authorized_keys"
  printf '* %s\n' "$(cat "$keys/host_key.pub")" >"$2/.ssh/known_hosts"
  chown "$1:$1" "$2/.ssh/known_hosts"
}

test -e "$keys/id_ed25519" || make_keys
test "$*" != make-keys || exit 0
install -m 600 "$keys/host_key" /etc/ssh/horovod_host_key
place_keys root /root
place_keys horovod /home/horovod
mkdir -p /run/sshd
exec "$@"
