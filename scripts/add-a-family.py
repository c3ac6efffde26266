#!/usr/bin/env python3
"""Follows docs/add-a-family.md to the letter in a copy of the tree: writes its files, makes its edits, runs its commands.

The copy lies in the target folder and is removed at the end; the checkout stays as it is. A fenced block belongs to the
line of prose before it:
    `PATH`:                        the block is that file
    In `PATH`, before `LINE`:      the block goes before the one line that reads so (likewise `after`)
    At the end of `PATH`, ...:     the block is appended
A block of `sh` holds commands; `cargo run --release --` there uses the profile of the other steps of `make test`, and what they have
built of other projects' crates, in a target folder of its own: its binary is another, and theirs is at work meanwhile.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
OWN = TARGET / "add-a-family-target"
PROFILE = "conformance"
# The wing that the page adds to is what its tests and clippy need; the binary has all.
WING = "--no-default-features --features layers"
# Only what the copy itself compiles: its dependencies are those that are built already.
QUICK = [f"--config profile.{PROFILE}.package.{name}.opt-level=0" for name in ("chronaxie-runtime", "chronaxie", "chronaxie-cli")]


def steps(text):
    """(prose line, language, block) of every fenced block, in order."""
    prose, language, block = "", None, []
    for line in text.splitlines():
        if language is None and line.startswith("```"):
            language, block = line[3:].strip(), []
        elif language is not None and line == "```":
            yield prose, language, "".join(f"{b}\n" for b in block)
            language, prose = None, ""
        elif language is not None:
            block.append(line)
        elif line.strip():
            prose = line
    if language is not None:
        sys.exit("add-a-family: a block of docs/add-a-family.md has no end")


def insert(path, side, anchor, block):
    """Puts `block` beside the one line of `path` that reads `anchor`."""
    lines = path.read_text().splitlines(keepends=True)
    at = [i for i, line in enumerate(lines) if line.strip() == anchor]
    if len(at) != 1:
        sys.exit(f"add-a-family: {len(at)} lines of {path.relative_to(path.parents[-2])} read `{anchor}`, not one")
    i = at[0] + (side == "after")
    path.write_text("".join(lines[:i] + [block] + lines[i:]))


def run(command, tree):
    """One command of a `sh` block."""
    options = f"--quiet --profile {PROFILE} {' '.join(QUICK)}"
    written = command
    command = command.replace("cargo run --release --", f"cargo run {options} --")
    for verb in ("test", "clippy"):
        command = command.replace(f"cargo {verb} ", f"cargo {verb} {options} {WING} ")
    print(f"$ {written}", flush=True)
    began = time.monotonic()
    # The toy layer needs no speed, and building does.
    quick = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1"}
    environment = {**os.environ, **quick, "CARGO_TARGET_DIR": str(OWN)}
    result = subprocess.run(command, shell=True, cwd=tree, env=environment, text=True, stdout=subprocess.PIPE)
    # Counts of this copy's tests and checks are not those of the checkout: indented, they are not added to them.
    print("".join(f"    {line}\n" for line in result.stdout.splitlines()), end="", flush=True)
    print(f"    ({time.monotonic() - began:.0f} s)", flush=True)
    if result.returncode != 0:
        sys.exit(f"add-a-family: `{written}` failed with {result.returncode}")
    for pattern, why in [
        (r"^running 0 tests$", "ran no test"),
        (r"^0 passed, ", "checked nothing"),
        (r"^0 cubins ", "compiled nothing"),
    ]:
        # Several test programs may have none of the family; all of them together must have one.
        if re.search(pattern, result.stdout, re.M) and not re.search(r"^[1-9]\d* passed|ok\. [1-9]", result.stdout, re.M):
            sys.exit(f"add-a-family: `{written}` {why}")


def lend():
    """What the other steps have built of other projects' crates is there for this target folder, too, and the emulated GPU."""
    OWN.mkdir(parents=True, exist_ok=True)
    (TARGET / "emulated").mkdir(exist_ok=True)
    if not (OWN / "emulated").is_symlink():
        (OWN / "emulated").symlink_to(TARGET / "emulated")
    for folder in (f"{PROFILE}/deps", f"{PROFILE}/build", f"{PROFILE}/.fingerprint"):
        for source in TARGET.glob(f"{folder}/*"):
            to = OWN / folder / source.name
            if source.name.removeprefix("lib").startswith("chronaxie") or to.exists():
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, to)
            elif source.suffix in (".rlib", ".rmeta", ".so", ".d"):
                shutil.copy2(source, to)


def follow(tree):
    files = edits = commands = 0
    for prose, language, block in steps((ROOT / "docs/add-a-family.md").read_text()):
        if language == "sh":
            for command in block.splitlines():
                run(command, tree)
                commands += 1
        elif m := re.fullmatch(r"`([^`]+)`:", prose):
            path = tree / m[1]
            if path.exists():
                sys.exit(f"add-a-family: {m[1]} exists already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
            files += 1
        elif m := re.match(r"In `([^`]+)`, (before|after) `([^`]+)`:$", prose):
            insert(tree / m[1], m[2], m[3], block)
            edits += 1
        elif m := re.match(r"At the end of `([^`]+)`", prose):
            with open(tree / m[1], "a") as f:
                f.write(block)
            edits += 1
        else:
            sys.exit(f"add-a-family: nothing says what to do with the block after: {prose}")
    print(f"add-a-family: {files} files, {edits} edits, {commands} commands")


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    # One fixed folder, so that a second run finds what the first has built; hence one run at a time.
    tree = TARGET / "add-a-family"
    with open(TARGET / "add-a-family.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(tree, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=subprocess.PIPE
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            # A file that git knows and the checkout has removed is not there to copy.
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        with open(TARGET / "lend.lock", "w") as builds:
            # python.sh, which is beside this step, builds there.
            fcntl.flock(builds, fcntl.LOCK_EX)
            lend()
        try:
            follow(tree)
        finally:
            shutil.rmtree(tree, ignore_errors=True)


if __name__ == "__main__":
    main()
