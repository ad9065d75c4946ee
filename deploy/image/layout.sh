#!/bin/sh
# Lays out users, owners and modes of the sandbox image. Runs as root inside the build.
#
# Everything is made here and not at run time: PID 1 has no CHOWN and no DAC_OVERRIDE. The mount points of the slots' tmpfs must exist with
# mode 0700, or the engine gives them 0755 from the second start on.
set -eu

groupadd --gid 20000 members
for slot in 1 2 3 4; do
  id=$((20000 + slot))
  groupadd --gid "$id" "slot$slot"
  useradd --uid "$id" --gid "$id" --groups 20000 --no-create-home --home-dir "/members/$slot/home" --shell /bin/bash "slot$slot"
done

# owned PATH OWNER:GROUP MODE. chown first: it clears the setgid bit.
owned() {
  mkdir -p "$1"
  chown "$2" "$1"
  chmod "$3" "$1"
}
owned /sf 0:0 0700
owned /sf/host 0:0 0700
owned /members 0:0 0711
owned /run/slots 0:0 0711
owned /workspace 0:20000 2770
owned /opt/standfast 0:0 0755
for slot in 1 2 3 4; do
  id=$((20000 + slot))
  owned "/members/$slot" "$id:$id" 0700
  owned "/members/$slot/home" "$id:$id" 0700
  owned "/run/slots/$slot" "$id:$id" 0700
done

# Nothing here needs to gain rights: no-new-privileges forbids it anyway, and this holds without it.
find / -xdev -type f \( -perm -4000 -o -perm -2000 \) -exec chmod ug-s {} +
