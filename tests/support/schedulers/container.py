# SPDX-License-Identifier: Apache-2.0
"""containers/Dockerfile without Docker: its lines run in a folder, and a cluster's hosts (support/cluster.py) start it.

    recipe = Recipe(DOCKERFILE, {"MPI": "mpich"})         # with build arguments
    recipe.build(Path("/image"))                          # all that RUN and COPY say, in a copy of the base image
    container = Container(recipe, host, Path("/image"), {"/train": folder, "/keys": keys})
    container.start()                                     # docker run -d
    container.command("hostname", user="horovod")         # docker exec: what to start here

A container has a layer of its own above the image, and the network of its host. Mounts are made in namespaces only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from support.cluster import Host
from support.pages import ROOT

__all__ = ["DOCKERFILE", "Container", "Recipe", "make_debian"]

DOCKERFILE = ROOT / "containers" / "Dockerfile"

# What a container gets of the machine that builds or runs it.
_MACHINE = """
for one in proc sys dev; do mkdir -p "$root/$one"; mount --rbind "/$one" "$root/$one"; done
"""
# apt and pip, in there, know the machine's way to their packages.
_NETWORK = """
test ! -e /etc/resolv.conf || cat /etc/resolv.conf >"$root/etc/resolv.conf"
test ! -d /etc/ssl/certs || mount --bind /etc/ssl/certs "$root/etc/ssl/certs"
"""


def make_debian(root: Path, release: str, tools: Path, limit_s: float) -> None:
    """A Debian with nothing but the essentials, like the image debian:RELEASE-slim; `tools`: a folder for its maker."""
    unpacked = tools / "debootstrap"
    own = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([str(ROOT / "tools" / "unpack-packages"), own, str(unpacked), "debootstrap"], check=True)
    made = f'sh "{unpacked}/usr/sbin/debootstrap" --variant=minbase --include=ca-certificates {release} "{root}"'
    subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "sh", "-c", made],
        env={**os.environ, "DEBOOTSTRAP_DIR": f"{unpacked}/usr/share/debootstrap"},
        check=True,
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
    )


class Recipe:
    """What a Dockerfile says, with some of its arguments given."""

    def __init__(self, file: Path, arguments: Mapping[str, str]) -> None:
        text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
        words = (line.partition(" ") for line in text.splitlines() if line)
        self.lines = [(keyword, rest.strip()) for keyword, _, rest in words]
        self.environment = self._pairs("ENV")
        self.arguments = {**self._pairs("ARG"), **arguments}
        unknown = set(arguments) - set(self._pairs("ARG"))
        assert not unknown, f"the recipe has no argument {unknown}"

    def only(self, keyword: str) -> str:
        (found,) = (rest for one, rest in self.lines if one == keyword)
        return found

    def words(self, keyword: str) -> list[str]:
        return [str(word) for word in json.loads(self.only(keyword))]

    def steps(self, wanted: Callable[[str], bool] = lambda line: True) -> str:
        """The wanted RUN and COPY lines, for a shell outside of the image, which lies at $root."""
        script = []
        for keyword, rest in filter(lambda line: wanted(line[1]), self.lines):
            if keyword == "RUN":
                script.append(f'chroot "$root" /bin/sh -c {shlex.quote(rest)}')
            elif keyword == "COPY":
                *options, source, target = rest.split()
                (mode,) = [option.removeprefix("--chmod=") for option in options] or ["u=rwX,go=rX"]
                place = f'"$root{target}"'
                script.append(f"mkdir -p $(dirname {place}); cp -rT {shlex.quote(str(ROOT / source))} {place}")
                script.append(f"chmod -R {mode} {place}")
        return "\n".join(script)

    def build(self, image: Path, limit_s: float) -> None:
        own = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        script = f"set -eu\n{_MACHINE}{_NETWORK}{self.steps()}"
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            env={**own, **self.environment, **self.arguments, "root": str(image)},
            check=True,
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
        )

    def _pairs(self, wanted: str) -> dict[str, str]:
        pairs = (rest.partition("=") for keyword, rest in self.lines if keyword == wanted)
        return {name: value.strip('"') for name, _, value in pairs}


class Container:
    """An image on a host; `volumes`: what lies at which folder in there."""

    def __init__(self, recipe: Recipe, host: Host, image: Path, volumes: Mapping[str, Path]) -> None:
        self.host = host
        self._recipe = recipe
        self._root = f"/mnt/container{host.index}/root"
        self._entry = recipe.words("ENTRYPOINT")
        binds = [f'mkdir -p "$root{place}"; mount --bind {folder} "$root{place}"' for place, folder in volumes.items()]
        layer = "lowerdir=$image,upperdir=$root/../upper,workdir=$root/../work"
        self.prepare(
            f"""mkdir -p "$root/.."; mount -t tmpfs tmpfs "$root/.."; mkdir "$root" "$root/../upper" "$root/../work"
            mount -t overlay -o "{layer}" overlay "$root"
            {_MACHINE}
            mount --bind /etc/hosts "$root/etc/hosts" """,
            *binds,
            image=str(image),
        )

    def prepare(self, *steps: str, **environment: str) -> None:
        """Runs it on the host, with the container's folder in $root."""
        names = {**self._recipe.environment, **self._recipe.arguments, **environment, "root": self._root}
        done = self.host.run("sh", "-c", "\n".join(["set -eu", *steps]), env={**os.environ, **names})
        assert done.returncode == 0, done

    def start(self) -> None:
        """Runs the entry point until its sshd listens. It ends with the host."""
        words = self._inside("/", *self._entry, *self._recipe.words("CMD"))
        sshd = self.host.popen(*words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert sshd.stderr is not None
        said = []
        for line in sshd.stderr:
            said.append(line)
            if "Server listening" in line:
                return
        raise AssertionError(f"the container's sshd does not run: {said}")

    def run_entry_point(self, *words: str) -> subprocess.CompletedProcess[str]:
        """docker run --rm, with these words as the command."""
        return self.host.run(*self._inside("/", *self._entry, *words))

    def command(self, *words: str, user: str = "root") -> list[str]:
        return self.host.command(*self._inside(self._recipe.only("WORKDIR"), *words, user=user))

    def _inside(self, directory: str, *words: str, user: str = "root") -> list[str]:
        home = "/root" if user == "root" else f"/home/{user}"
        names = [f"{name}={value}" for name, value in {**self._recipe.environment, "HOME": home}.items()]
        place = ["chroot", f"--userspec={user}:{user}", self._root, "sh", "-c", 'cd "$0" && exec "$@"', directory]
        return ["env", "-i", *names, *place, *words]
