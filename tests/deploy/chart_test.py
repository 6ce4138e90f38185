#!/usr/bin/env python3
"""Tests of deploy/charts/kvmesh without a cluster: lint, golden renderings, schemas, refusals.

usage: chart_test.py [--update]      --update rewrites tests/deploy/golden from what the chart renders now

Needs build/tools (tools/test.sh makes it).
"""

import difflib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/deploy"
CHART = ROOT / "deploy/charts/kvmesh"
TOOLS = ROOT / "build/tools"
OLDEST, NEWEST = "1.30.0", "1.37.0"
VALUE_SETS = sorted((HERE / "values").glob("*.yaml"))


def run(*command, check=True, **options):
    """Runs a tool of build/tools to its end; its output, both streams joined when it may fail."""
    path = f"{TOOLS / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(command, env={**os.environ, "PATH": path}, text=True, timeout=120, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE if check else subprocess.STDOUT, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def template(*arguments, kube_version=NEWEST, check=True):
    return run("helm", "template", "mesh", str(CHART), "--namespace", "inference", "--kube-version", kube_version,
               *arguments, check=check)


def golden_form(rendered):
    """`rendered` with every dashboard, which must be the file's own text, replaced by the file's name."""
    def replaced(match):
        name, body = match[1], re.sub(r"^    ", "", match[2], flags=re.M)
        if body.strip() != (ROOT / "deploy/dashboards" / name).read_text(encoding="utf-8").strip():
            raise AssertionError(f"the ConfigMap does not hold deploy/dashboards/{name} as it is")
        return f"  {name}: |\n    (deploy/dashboards/{name})\n"
    return re.sub(r"^  (\S+\.json): \|\n((?:    .*\n|\n)+)", replaced, rendered, flags=re.M)


def described(schema, path=""):
    """Yields (path of a value, its description or None) for everything below `schema`."""
    for name, value in schema.get("properties", {}).items():
        yield f"{path}.{name}", value.get("description")
        yield from described(value, f"{path}.{name}")
        yield from described(value.get("items", {}), f"{path}.{name}[]")


class ChartTest(unittest.TestCase):
    maxDiff = None

    def test_lints_strictly_with_every_value_set(self):
        for values in VALUE_SETS:
            with self.subTest(values=values.name):
                run("helm", "lint", "--strict", "--kube-version", NEWEST, "--values", str(values), str(CHART))

    def test_renders_what_is_written_down(self):
        self.assertEqual([v.stem for v in VALUE_SETS], sorted(g.stem for g in (HERE / "golden").glob("*.yaml")))
        for values in VALUE_SETS:
            with self.subTest(values=values.name):
                golden = HERE / "golden" / values.name
                rendered = golden_form(template("--values", str(values)))
                difference = difflib.unified_diff(golden.read_text(encoding="utf-8").splitlines(),
                                                  rendered.splitlines(), str(golden), "rendered", lineterm="")
                self.assertEqual("", "\n".join(difference), "tests/deploy/chart_test.py --update accepts it")

    def conform(self, rendered, version, check=True):
        """What kubeconform says of `rendered`, as JSON."""
        kubernetes = f"{TOOLS}/schemas/{{{{.NormalizedKubernetesVersion}}}}-standalone{{{{.StrictSuffix}}}}"
        return run("kubeconform", "-strict", "-summary", "-output", "json", "-kubernetes-version", version,
                   "-schema-location", kubernetes + "/{{.ResourceKind}}{{.KindSuffix}}.json",
                   "-schema-location", f"{TOOLS}/schemas/custom/{{{{.ResourceKind}}}}_{{{{.ResourceAPIVersion}}}}.json",
                   input=rendered, check=check)

    def test_every_object_is_one_that_kubernetes_knows(self):
        for version in (OLDEST, NEWEST):
            for values in VALUE_SETS:
                with self.subTest(values=values.name, kubernetes=version):
                    out = self.conform(template("--values", str(values), kube_version=version), version)
                    summary = json.loads(out)["summary"]
                    self.assertGreater(summary["valid"], 4)
                    self.assertEqual((0, 0, 0), (summary["invalid"], summary["errors"], summary["skipped"]))

    def test_the_schemas_refuse_what_kubernetes_does_not_know(self):
        service = template("--show-only", "templates/shard/service.yaml").replace("clusterIP: None", "clusterIPs: None")
        self.assertIn('"invalid": 1', self.conform(service, NEWEST, check=False))

    def test_refuses_by_name(self):
        lines = [line for line in (HERE / "refusals.txt").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
        self.assertGreater(len(lines), 30)
        for line in lines:
            with self.subTest(line):
                option_and_value, words = line.split(" => ")
                out = template(*option_and_value.split(" ", 1), check=False)
                self.assertIn("Error", out)
                self.assertIn(words, out)

    def test_a_block_that_is_null_is_refused_by_name_and_no_nil_pointer(self):
        schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
        for block in schema["required"]:
            with self.subTest(block):
                out = template("--set-json", f"{block}=null", check=False)
                self.assertIn(f"missing property '{block}'", out)

    def test_every_value_is_described_and_every_description_is_of_a_value(self):
        schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
        undescribed = [path for path, text in described(schema) if not text]
        self.assertEqual([], undescribed)
        # Objects are closed and all their values required: so values.yaml, which lints, has exactly these.
        def check(node, path):
            if "properties" in node:
                self.assertIs(False, node.get("additionalProperties"), path)
            for name, value in node.get("properties", {}).items():
                check(value, f"{path}.{name}")
        check(schema, "values")

    def test_numbers_keep_their_digits(self):
        out = template("--set", "image.tag=20161216", "--set", "stores.disk.budget=17179869185")
        self.assertIn('image: "kvmesh:20161216"', out)
        self.assertIn("--budget-bytes=17179869185", out)
        self.assertNotRegex(out, r"\d\.\d+e[+]\d+")

    def test_nothing_runs_as_root_or_writes_its_root(self):
        for values in VALUE_SETS:
            with self.subTest(values=values.name):
                out = template("--values", str(values))
                containers = len(re.findall(r"^ +image: ", out, re.M))
                self.assertEqual(containers, out.count("readOnlyRootFilesystem: true"))
                self.assertEqual(containers, out.count("allowPrivilegeEscalation: false"))
                self.assertEqual(containers, out.count("capabilities: {drop: [ALL]}"))
                pods = out.count("runAsNonRoot: true")
                self.assertEqual(pods, len(re.findall(r"^ +seccompProfile: \{type: RuntimeDefault\}", out, re.M)))
                self.assertEqual(pods, len(re.findall(r"^ +enableServiceLinks: false", out, re.M)))

    def test_shards_may_call_every_store_and_nothing_else(self):
        for values in VALUE_SETS:
            with self.subTest(values=values.name):
                out = template("--values", str(values))
                advertised = {re.sub(r"^\$\(POD_NAME\)", "*", name) for name in re.findall(r"--advertise=(\S+)", out)}
                for allowed in re.findall(r"--stores=(\S+)", out):
                    self.assertEqual(advertised, set(allowed.split(",")))
                self.assertEqual(bool(advertised), "--stores=" in out)

    def test_every_flag_is_one_that_the_program_has(self):
        programs = os.environ["KVMESH_BIN_DIR"]
        rendered = "\n".join(template("--values", str(values)) for values in VALUE_SETS)
        used = {}
        for container in re.finditer(r"command: \[/usr/bin/(kvmesh[a-z-]*)\]\n +args:\n((?: +(?:- .*|#.*)\n)+)", rendered):
            flags = used.setdefault(container[1], set())
            flags.update(re.findall(r"- \"?(--[a-z-]+)", container[2]))
        self.assertEqual({"kvmesh", "kvmesh-router", "kvmesh-shard", "kvmesh-meta", "kvmesh-blob"}, set(used))
        for program, flags in used.items():
            usage = run(f"{programs}/{program}", "--help")
            if program == "kvmesh":
                usage += run(f"{programs}/{program}", "generate", "--help")
            known = set(re.findall(r"--[a-z-]+", usage))
            self.assertEqual(set(), flags - known, program)


def update():
    (HERE / "golden").mkdir(exist_ok=True)
    for values in VALUE_SETS:
        (HERE / "golden" / values.name).write_text(golden_form(template("--values", str(values))), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main()
