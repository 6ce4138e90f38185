#!/usr/bin/env python3
"""Runs docs/debugging.md against a mesh: every command in its `console` blocks must print what the page shows.

A `…` in the page stands for any text within a line; a line that is only `…` stands for any lines.
"""

import pathlib
import re
import subprocess
import tempfile
import unittest
import os

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = os.environ.get("KVMESH_BIN_DIR", str(ROOT / "build/dev/bin"))
MODEL = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
MARK = "--- end of command ---"


def commands(page):
    """(command, expected lines) in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def pattern(lines):
    """A regular expression for what the page shows."""
    parts = []
    for line in lines:
        parts.append(r"(?:[^\n]*\n)*?" if line == "…" else re.escape(line).replace("…", r"[^\n]*") + r"\n")
    return "".join(parts)


class DebuggingTest(unittest.TestCase):
    maxDiff = None

    def test_every_command_prints_what_the_page_shows(self):
        page = commands((ROOT / "docs/debugging.md").read_text(encoding="utf-8"))
        self.assertGreater(len(page), 20)
        folder = tempfile.TemporaryDirectory(prefix="kvmesh-debugging-")
        self.addCleanup(folder.cleanup)
        mesh = f"{folder.name}/mesh"
        env = {**os.environ, "MESH": mesh, "PATH": f"{PROGRAMS}:{ROOT / 'build/tools/bin'}:{os.environ['PATH']}"}
        subprocess.run(["kvmesh", "up", "--model", MODEL, "--shards", "2", "--data-dir", mesh, "--detach"], env=env, cwd=ROOT, check=True, timeout=300,
                       stdout=subprocess.DEVNULL)
        self.addCleanup(subprocess.run, ["kvmesh", "down", "--data-dir", mesh], env=env, cwd=ROOT, timeout=300, stdout=subprocess.DEVNULL)
        script = "".join(f"{command}\necho '{MARK}'\n" for command, _ in page)
        done = subprocess.run(["bash"], input=script, env=env, cwd=ROOT, text=True, timeout=400, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        outputs = done.stdout.split(f"{MARK}\n")
        self.assertEqual(len(page) + 1, len(outputs), done.stdout)
        for (command, expected), output in zip(page, outputs):
            with self.subTest(command):
                self.assertRegex(output, rf"\A{pattern(expected)}\Z")


if __name__ == "__main__":
    unittest.main()
