#!/usr/bin/env python3
"""Tests of README.md and docs/: links lead somewhere, and flags that are spoken of exist."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages for those who run the mesh; the others speak of the programs' insides too.
OPERATORS_PAGES = ["install", "operate", "sizing", "upgrade", "failure-guide", "faq", "runbook"]
OTHER_PROGRAMS_FLAGS = {"--namespace", "--create-namespace", "--set", "--values", "--reuse-values", "--reset-then-reuse-values", "--cascade", "--now", "--read-only"}


def text_of(page):
    return page.read_text(encoding="utf-8")


class DocsTest(unittest.TestCase):
    def test_links_lead_to_files(self):
        count = 0
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(page)):
                if re.match(r"[a-z]+:", target):
                    continue
                count += 1
                with self.subTest(page=page.name, link=target):
                    self.assertTrue((page.parent / target).exists())
        self.assertGreater(count, 20)

    def test_flags_that_operators_are_told_of_exist(self):
        programs = pathlib.Path(os.environ["KVMESH_BIN_DIR"])
        commands = [[f"kvmesh-{name}"] for name in ("router", "shard", "meta", "blob")]
        commands += [["kvmesh", *words.split()] for words in ("", "up", "generate", "explain", "checkpoints rm", "checkpoints ls", "slab ls", "bench lookup")]
        known = OTHER_PROGRAMS_FLAGS
        for program, *words in commands:
            usage = subprocess.run([programs / program, *words, "--help"], text=True, timeout=60, check=True, stdout=subprocess.PIPE)
            known |= set(re.findall(r"--[a-z][a-z-]+", usage.stdout))
        for name in OPERATORS_PAGES:
            with self.subTest(name):
                told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text_of(ROOT / f"docs/{name}.md")))
                self.assertEqual(set(), told - known)


if __name__ == "__main__":
    unittest.main()
