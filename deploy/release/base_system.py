"""A minimal Debian with the sandbox's packages, made with debootstrap from the machine's own mirror: no registry needed.

Root on Debian only. The result is a tarball in the cache; its name holds the digest of everything it was made from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy.release.apt_sources import AptSource
from deploy.release.errors import BuildError

SUITE = "bookworm"
# What a sandbox holds beside the CLIs: python3 runs PID 1, the others are the tools of an agent.
PACKAGES = ("ca-certificates", "curl", "git", "procps", "python3", "ripgrep")
_RECIPE = "1"  # raise it when the steps below change
_STEP_TIMEOUT_S = 900
_HOST_CA = Path("/etc/ssl/certs/ca-certificates.crt")
# Documents and translations that no agent reads; licences stay.
_TRIM = """
set -e
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -type d -empty -delete
rm -rf usr/share/man/* usr/share/info/* usr/share/locale/* usr/share/lintian/* usr/share/groff/* usr/share/linda/*
rm -rf var/cache/apt/* var/lib/apt/lists/* var/log/*.log var/log/apt/* var/cache/debconf/*-old var/lib/dpkg/*-old tmp/*
rm -f etc/resolv.conf etc/hostname etc/apt/apt.conf.d/00build etc/dpkg/dpkg.cfg.d/00build usr/sbin/policy-rc.d
"""


def base_key(sources: list[AptSource]) -> str:
    """Names a base system by what it is made from."""
    text = "\n".join([_RECIPE, SUITE, *PACKAGES, *(source.line for source in sources)])
    return f"{SUITE}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def base_tarball(sources: list[AptSource], cache: Path) -> Path:
    """The base system's tarball, made unless the cache has it. `sources` are the machine's, the suite itself first."""
    target = cache / "base" / f"{base_key(sources)}.tar"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if shutil.which("debootstrap") is None:
        _run(["apt-get", "update", "-q"])
        _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "debootstrap"])
    root = Path(tempfile.mkdtemp(prefix="root-", dir=target.parent))
    try:
        _fill(root, sources)
        half = target.with_suffix(".part")
        _run(["tar", "-C", str(root), "--one-file-system", "--numeric-owner", "--sort=name", "-cf", str(half), "."])
        os.replace(half, target)
    finally:
        # debootstrap may leave these mounted when it is interrupted; deleting through a mount would reach the machine itself.
        for mounted in ("proc", "sys", "dev/pts", "dev"):
            subprocess.run(["umount", "-l", str(root / mounted)], capture_output=True, check=False)
        shutil.rmtree(root, ignore_errors=True)
    return target


def _fill(root: Path, sources: list[AptSource]) -> None:
    print(f"base: debootstrap {SUITE} from the machine's own mirror (about a minute, once)", flush=True)
    # The suite's own archive is signed by Debian; the machine's apt configuration applies to what follows.
    include = "--include=ca-certificates" if any(s.uri.startswith("https:") for s in sources) else "--include=apt"
    _run(["debootstrap", "--variant=minbase", include, SUITE, str(root), sources[0].uri])
    (root / "etc/apt/sources.list").write_text("".join(source.line + "\n" for source in sources))
    (root / "etc/apt/apt.conf.d/00build").write_text(_host_apt_settings())
    (root / "etc/dpkg/dpkg.cfg.d/00build").write_text("force-unsafe-io\n")
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    if include.endswith("certificates") and _HOST_CA.exists():
        shutil.copy(_HOST_CA, root / "etc/ssl/certs/ca-certificates.crt")
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    chroot = ["chroot", str(root), "/usr/bin/env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"]
    _run([*chroot, "apt-get", "update", "-q"])
    _run([*chroot, "apt-get", "dist-upgrade", "-y", "-q"])
    _run([*chroot, "apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES])
    # The bundle of the build must not stay: the machine's own authorities are no business of a sandbox.
    _run([*chroot, "update-ca-certificates", "--fresh"])
    _run(["sh", "-c", f"cd '{root}'\n{_TRIM}"])
    (root / "etc/hosts").write_text("127.0.0.1\tlocalhost\n::1\tlocalhost\n")


def _host_apt_settings() -> str:
    """The machine's apt settings that decide whether its mirror can be read at all: proxies and release checks."""
    done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=60, check=True)
    names = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries", "Acquire::ForceIPv")
    lines = [line for line in done.stdout.splitlines() if line.startswith(names)]
    return "\n".join([*lines, 'APT::Install-Recommends "false";', 'Acquire::Languages "none";']) + "\n"


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_STEP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise BuildError(f"{command[0]} ended with {done.returncode} ({' '.join(command)}):\n{tail}")
