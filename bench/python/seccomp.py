#!/usr/bin/env python3
"""Makes the two seccomp profiles of `tuning/` from the default profile of Docker.

    seccomp.py DEFAULT.json         writes tuning/seccomp.json and tuning/seccomp-oci.json

DEFAULT.json is `default.json` of the Go module of `SOURCE`. The first file is that profile with one rule more, in
Docker's form. The second is flat, in the form of the OCI runtime: its conditions are resolved for x86-64 and aarch64
and for a container without capabilities. A runtime that ignores conditions would make permissions of them.
"""

import json
import pathlib
import sys

SOURCE = ("github.com/moby/profiles/seccomp", "v0.3.0")
RINGS = ["io_uring_enter", "io_uring_register", "io_uring_setup"]
TUNING = pathlib.Path(__file__).resolve().parents[2] / "tuning"
# Names of architectures in conditions, and those that a filter of the flat profile is for.
FLAT = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}


def docker(default):
    """The default profile, which also allows rings."""
    comment = "murre: every socket of a shard is in io_uring rings"
    rule = {"names": RINGS, "action": "SCMP_ACT_ALLOW", "comment": comment}
    return {**default, "syscalls": [rule, *default["syscalls"]]}


def flat(profile):
    """The rules of a profile for a container without capabilities, without conditions."""
    subordinate = {each["architecture"]: each["subArchitectures"] or [] for each in profile["archMap"]}
    rules = []
    for rule in profile["syscalls"]:
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        unknown = (includes.keys() | excludes.keys()) - {"caps", "arches", "minKernel"}
        if unknown:
            sys.exit(f"the profile has a condition that is not known here: {unknown}")
        # Calls of one architecture have no number on the other, so a rule for one of the two does nothing there.
        mine = set(includes.get("arches", FLAT)) & FLAT.keys() - set(excludes.get("arches", []))
        if includes.get("caps") or not mine:
            continue
        rules.append({key: value for key, value in rule.items() if key in ("names", "action", "errnoRet", "args")})
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [name for arch in FLAT.values() for name in [arch, *subordinate[arch]]],
        "syscalls": rules,
    }


def made(default):
    """The text of both files by name."""
    profile = docker(default)
    return {
        name: json.dumps(content, indent=1) + "\n"
        for name, content in (("seccomp.json", profile), ("seccomp-oci.json", flat(profile)))
    }


if __name__ == "__main__":
    for name, text in made(json.loads(pathlib.Path(sys.argv[1]).read_text())).items():
        (TUNING / name).write_text(text)
