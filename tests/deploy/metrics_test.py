#!/usr/bin/env python3
"""A mesh over mTLS with tenants, three stores and two replicas of each stage, under a real Prometheus (live_mesh.py): every
query of every dashboard and rule finds data there, tenants are apart, and one replica of each stage may go.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

from live_mesh import PATIENCE_SECONDS, ROOT, TENANTS, LiveMesh

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


MESH = None  # one for all tests of this file: it takes a while to start


def setUpModule():
    global MESH
    MESH = LiveMesh()
    unittest.addModuleCleanup(MESH.stop)


class LiveTest(unittest.TestCase):
    def setUp(self):
        self.mesh = MESH
        self.prometheus = MESH.prometheus
        self.end = time.monotonic() + PATIENCE_SECONDS

    def wait_until(self, what, condition):
        """The last value of `condition`, which must become true."""
        while not (value := condition()):
            self.assertLess(time.monotonic(), self.end, what)
            time.sleep(0.2)
        return value


def long_prompt(number):
    """Long enough to be saved; none begins as another does."""
    return f"{number}. " + (ROOT / "docs/architecture.md").read_text(encoding="utf-8")[:3200]


class MetricsTest(LiveTest):
    def use_the_mesh(self, number):
        """A prompt that is saved and found again, callers without a token, and a tenant above its limit."""
        for _ in range(2):
            self.mesh.generate("acme", long_prompt(number))
        self.mesh.as_role("operator", "status", "--router", self.mesh.router)
        for tenant, refusal in (("tight", "tokens_per_minute of tenant tight is 10"), (None, "a token is needed")):
            refused = self.mesh.as_role("client", "generate", "--router", self.mesh.router, "--prompt", long_prompt(number), tenant=tenant)
            self.assertNotEqual(0, refused.returncode)
            self.assertIn(refusal, refused.stdout + refused.stderr)

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
            self.wait_until(query, lambda query=query: self.prometheus.finds(query))

    def test_label_values_are_few(self):
        """However long a mesh runs: no name of a session, model, path or client is a label."""
        series = self.prometheus.ask("series", **{"match[]": '{__name__=~"kvmesh_.*"}'})
        labels = {label for one in series for label in one}
        self.assertLessEqual(labels, {"__name__", "job", "instance", "le", "rpc", "code", "result", "reason", "cause", "outcome",
                                      "tier", "what", "state", "phase", "event", "kind", "side", "defect", "tenant", "limit"})


class RollingUpgradeTest(LiveTest):
    def instances(self):
        """Of the shards that the router sees, by address."""
        status = json.loads(self.mesh.as_role("operator", "status", "--router", self.mesh.router).stdout)
        return {shard["address"]: shard["instance_id"] for shard in status["shards"] if shard["connected"] and not shard["draining"]}

    def test_no_request_is_lost_while_every_process_behind_the_routers_is_replaced(self):
        self.wait_until("all four shards", lambda: len(self.instances()) == 4)
        prompt = long_prompt("upgrade")
        ids = self.mesh.generate("bolt", prompt)["token_ids"]
        answers, stop = [], threading.Event()

        def ask():
            while not stop.is_set():
                try:
                    answers.append(self.mesh.generate("bolt", prompt)["token_ids"])
                except AssertionError as error:
                    answers.append(str(error))

        client = threading.Thread(target=ask)
        client.start()
        try:
            # The order of docs/upgrade.md.
            for name in ("meta", "tier-ram", "tier-ram_file", "tier-disk"):
                self.mesh.restart(name)
            for name in sorted(s["name"] for s in self.mesh.file["services"] if s["name"].startswith("shard-")):
                address, before = self.mesh.service(name)["address"], self.instances()
                self.mesh.restart(name)
                self.wait_until(f"{name} is seen again", lambda: self.instances().get(address, before[address]) != before[address])
        finally:
            stop.set()
            client.join()
        self.assertGreater(len(answers), 2)
        self.assertEqual([ids] * len(answers), answers)
        self.wait_until("every target up", lambda: self.prometheus.sum("up") == len(self.mesh.file["services"]))


class TenantsTest(LiveTest):
    def test_what_one_tenant_has_stored_is_nothing_to_another(self):
        prompt = long_prompt("tenants")
        cold = self.mesh.generate("acme", prompt)
        self.assertEqual(0, cold["usage"]["cached_tokens"])
        warm = self.wait_until("a warm answer", lambda: next(
            (a for a in [self.mesh.generate("acme", prompt)] if a["usage"]["cached_tokens"] > 0), None))
        other = self.mesh.generate("bolt", prompt)
        self.assertEqual((0, "COLD", "no_row"), tuple(other["usage"][k] for k in ("cached_tokens", "outcome", "cause")))
        self.assertEqual(cold["token_ids"], warm["token_ids"])
        self.assertEqual(cold["token_ids"], other["token_ids"])
        self.wait_until("tokens by tenant", lambda: all(
            self.prometheus.sum(f'kvmesh_router_tenant_tokens_total{{tenant="{name}"}}') > 0 for name in ("acme", "bolt")))
        tenants = {dict(labels)["tenant"] for labels in self.prometheus.values("kvmesh_router_tenant_tokens_total")}
        self.assertLessEqual(tenants, set(TENANTS))

    def test_who_has_no_part_in_a_call_is_refused_and_counted(self):
        meta = self.mesh.service("meta")["address"]
        refused = self.mesh.as_role("client", "checkpoints", "ls", "--meta", meta, tenant="acme")
        self.assertEqual(3, refused.returncode, refused.stdout)
        self.assertEqual(0, self.mesh.as_role("operator", "checkpoints", "ls", "--meta", meta).returncode)
        plain = self.mesh.run("--json", "checkpoints", "ls", "--meta", meta)
        self.assertEqual(3, plain.returncode, plain.stdout)
        self.wait_until("the refusal", lambda: self.prometheus.sum(
            'kvmesh_meta_peers_refused_total{side="client", reason="wrong_role"}') > 0)
        # Nobody of the mesh itself is refused.
        self.assertEqual({}, self.prometheus.values('{__name__=~"kvmesh_.*_peers_refused_total", side="server"} > 0'))

    def test_grpcurl_speaks_to_it_as_the_charts_notes_say(self):
        notes = (ROOT / "deploy/charts/kvmesh/templates/NOTES.txt").read_text(encoding="utf-8")
        options = re.search(r"grpcurl \{\{ if \.Values\.tls\.enabled \}\}(.*?)\{\{ else", notes)[1]
        options = options.replace("DIR", str(self.mesh.folder / "certs/client")).split()
        token = (self.mesh.folder / "bolt.token").read_text(encoding="utf-8")
        done = subprocess.run(
            [str(ROOT / "build/tools/bin/grpcurl"), *options, "-H", f"authorization: Bearer {token}", "-d",
             '{"text": "The capital of France is", "options": {"max_tokens": 2}}', self.mesh.router, "kvmesh.v1.RouterService/Generate"],
            text=True, timeout=PATIENCE_SECONDS, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(0, done.returncode, done.stdout)
        self.assertIn('"reason": "FINISH_REASON_LENGTH"', done.stdout)

    def test_each_store_is_attached_and_what_is_saved_lies_in_them(self):
        self.mesh.generate("bolt", long_prompt("stores"))
        self.wait_until("three stores", lambda: self.prometheus.sum("kvmesh_meta_stores_serving") == 3)
        self.assertEqual({"ram", "ram_file", "disk"},
                         {dict(labels)["tier"] for labels in self.prometheus.values('kvmesh_meta_store_bytes{what="budget"} > 0')})
        self.wait_until("stored bytes", lambda: self.prometheus.sum('kvmesh_meta_store_bytes{what="live"}') > 0)


class WithoutOneReplicaTest(LiveTest):
    """The last one: it takes a replica of each stage away."""

    def test_a_stage_whose_replica_is_killed_goes_on_and_prometheus_sees_it(self):
        prompt = long_prompt("replicas")
        before = self.mesh.generate("acme", prompt)
        self.wait_until("four shards", lambda: self.prometheus.sum("kvmesh_router_shards_seen") == 4)
        for name in ("shard-0", "shard-1"):
            os.kill(self.mesh.service(name)["pid"], signal.SIGKILL)
        after = self.mesh.generate("acme", prompt)
        self.assertEqual(before["token_ids"], after["token_ids"])
        self.wait_until("two shards", lambda: self.prometheus.sum("kvmesh_router_shards_seen") == 2)
        self.wait_until("two targets down", lambda: self.prometheus.sum("up == bool 0") == 2)
        self.assertEqual(1, self.prometheus.sum("kvmesh_router_route_ready"))


if __name__ == "__main__":
    if not shutil.which("prometheus"):
        sys.exit("prometheus is not installed; tools/test.sh installs it")
    unittest.main()
