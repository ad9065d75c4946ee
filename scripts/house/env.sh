# Sourced by every script here: where the repository is, where cached things go, and how a script says something.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck disable=SC2034  # read by the scripts that source this file
cache=${STANDFAST_CACHE:-$repo/.cache}
# Debian keeps dockerd, debootstrap and mount helpers in the sbin folders, which a user's PATH may lack.
export LC_NUMERIC=C
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

say() { printf '%s: %s\n' "${0##*/}" "$*"; }

# die CODE TEXT: ends the script with a reason. Exit codes are listed in each script's --help.
die() {
  local code=$1
  shift
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit "$code"
}

# usage: prints the comment block at the head of the calling script (from its second line to the first empty line).
usage() { sed -n '2,/^$/{s/^# \{0,1\}//;p}' "$0"; }

is_debian_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -e /etc/debian_version ]; }

# apt_install PACKAGE...: refreshes the lists once, then installs. Services are not expected to start by themselves.
apt_install() {
  say "installing Debian packages: $*"
  apt-get update -q -o Acquire::Retries=3 >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Acquire::Retries=3 --no-install-recommends "$@" >/dev/null
}
