#!/usr/bin/env python3
"""A running mesh under a real Prometheus: every query of every dashboard and rule must find data there.

Starts the real programs (KVMESH_BIN_DIR) over the model that tools/test.sh fetches, and Debian's prometheus, on free
ports of this machine; sends requests until everything has been seen, or the patience is over.
"""

import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("KVMESH_BIN_DIR", ROOT / "build/dev/bin"))
MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
PATIENCE_SECONDS = 240

# What there must be at least (DESIGN, Observability): rates, errors and latencies of every service's RPCs, times to
# tokens, queues, sessions, evictions and misses by cause, look-ups, cached tokens, saves, restores, stores,
# reservations, and the parts of a hop's latency.
REQUIRED = """
kvmesh_router_rpcs_total kvmesh_router_rpc_latency_seconds_bucket kvmesh_shard_rpcs_total
kvmesh_shard_rpc_latency_seconds_bucket kvmesh_meta_rpcs_total kvmesh_meta_rpc_latency_seconds_bucket
kvmesh_blob_rpcs_total kvmesh_blob_rpc_latency_seconds_bucket
kvmesh_router_time_to_first_token_seconds_bucket kvmesh_router_time_per_output_token_seconds_bucket
kvmesh_router_queue_depth kvmesh_router_queued_seconds_bucket kvmesh_router_generations_running
kvmesh_shard_queued_frames kvmesh_shard_sessions kvmesh_shard_evictions_total kvmesh_shard_cache_misses_total
kvmesh_shard_cache_bytes kvmesh_router_lookup_seconds_bucket kvmesh_meta_lookup_seconds_bucket
kvmesh_router_lookups_total kvmesh_router_prompts_total kvmesh_router_cached_tokens_total kvmesh_router_saves_total
kvmesh_shard_saves_total kvmesh_shard_saved_bytes_total kvmesh_shard_restores_total kvmesh_blob_bytes
kvmesh_meta_store_bytes kvmesh_blob_slabs_quarantined_total kvmesh_meta_reservations kvmesh_meta_leases
kvmesh_meta_events_total kvmesh_meta_queue_commands kvmesh_shard_compute_seconds_bucket
kvmesh_shard_wait_seconds_bucket kvmesh_shard_downstream_seconds_bucket kvmesh_shard_computing_seconds
""".split()
LONGEST_BUCKET = "600"  # of the latencies of whole answers


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """A prometheus that scrapes `targets` every second. Stopped by stop()."""

    def __init__(self, folder, targets):
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str((ROOT / "deploy/alerts/kvmesh.rules.yaml").resolve())],
            "scrape_configs": [{"job_name": f"kvmesh-{name}", "static_configs": [{"targets": [target]}]} for name, target in targets],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        self.address = f"127.0.0.1:{free_port()}"
        self.log = open(folder / "prometheus.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [shutil.which("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={self.address}"], stdout=self.log, stderr=subprocess.STDOUT)

    def ask(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def ready(self):
        try:
            self.ask("status/runtimeinfo")
            return True
        except OSError:
            return False

    def finds(self, query):
        """Whether the query gives a number."""
        result = self.ask("query", query=query)["result"]
        return any(not math.isnan(float(series["value"][1])) for series in result)

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()


def dashboard_queries():
    """(dashboard: panel, query) for every target of every panel, with Grafana's variables replaced."""
    for path in sorted((ROOT / "deploy/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$namespace", ".*").replace("$__rate_interval", "1m")
                if "$" in query:
                    raise AssertionError(f"{path.name}, {panel['title']}: a variable that this test does not know: {query}")
                yield f"{path.stem}: {panel['title']}", query


def rule_queries(prometheus):
    """(rule, query): of recording rules the whole, of alerts every series they select (none should fire)."""
    for group in prometheus.ask("rules")["groups"]:
        for rule in group["rules"]:
            if rule["type"] == "recording":
                yield rule["name"], rule["query"]
                continue
            for selector in re.findall(r"\b(?:kvmesh[_:][\w:]+|up)(?:\{[^}]*\})?", rule["query"]):
                yield rule["name"], selector


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvmesh-metrics-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.kvmesh("up", "--model", str(MODEL), "--shards", "2", "--data-dir", str(cls.folder / "mesh"), "--detach")
        cls.addClassCleanup(cls.kvmesh, "down", "--data-dir", str(cls.folder / "mesh"))
        mesh = json.loads((cls.folder / "mesh/mesh.json").read_text(encoding="utf-8"))
        cls.router = mesh["router"]
        cls.prometheus = Prometheus(cls.folder, [(s["name"], s["metrics"]) for s in mesh["services"]])
        cls.addClassCleanup(cls.prometheus.stop)
        cls.end = time.monotonic() + PATIENCE_SECONDS
        while not cls.prometheus.ready():
            if time.monotonic() > cls.end:
                raise AssertionError((cls.folder / "prometheus.log").read_text(encoding="utf-8"))
            time.sleep(0.1)

    @classmethod
    def kvmesh(cls, *arguments):
        done = subprocess.run([str(PROGRAMS / "kvmesh"), *arguments], text=True, timeout=PATIENCE_SECONDS, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"kvmesh {arguments[0]} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def use_the_mesh(self, number):
        """A prompt long enough to be saved, and the same again, which is found."""
        prompt = f"{number}. " + (ROOT / "docs/architecture.md").read_text(encoding="utf-8")[:3200]
        for _ in range(2):
            self.kvmesh("generate", "--router", self.router, "--prompt", prompt, "--max-tokens", "4", "--json")
        self.kvmesh("status", "--router", self.router)

    def test_every_query_of_dashboards_and_rules_finds_data(self):
        pending = {*dashboard_queries(), *rule_queries(self.prometheus), *((name, name) for name in REQUIRED)}
        self.assertGreater(len(pending), 150)
        number = 0
        while pending:
            number += 1
            self.use_the_mesh(number)
            pending = {(name, query) for name, query in pending if not self.prometheus.finds(query)}
            if time.monotonic() > self.end:
                break
        self.assertEqual([], sorted(pending), f"queries without data after {number} rounds")

    def test_latencies_of_whole_answers_have_a_bucket_of_ten_minutes(self):
        self.use_the_mesh(0)
        for name in ("time_to_first_token_seconds", "time_per_output_token_seconds", "rpc_latency_seconds"):
            query = f'kvmesh_router_{name}_bucket{{le="{LONGEST_BUCKET}"}}'
            while not self.prometheus.finds(query):
                self.assertLess(time.monotonic(), self.end, query)
                time.sleep(0.2)

    def test_label_values_are_few(self):
        """However long a mesh runs: no name of a session, model, path or client is a label."""
        series = self.prometheus.ask("series", **{"match[]": '{__name__=~"kvmesh_.*"}'})
        labels = {label for one in series for label in one}
        self.assertLessEqual(labels, {"__name__", "job", "instance", "le", "rpc", "code", "result", "reason", "cause", "outcome",
                                      "tier", "what", "state", "phase", "event", "kind", "side", "defect", "tenant", "limit"})


if __name__ == "__main__":
    if not shutil.which("prometheus"):
        sys.exit("prometheus is not installed; tools/test.sh installs it")
    unittest.main()
