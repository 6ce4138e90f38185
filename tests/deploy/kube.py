#!/usr/bin/env python3
"""Tests of the chart against a real kube-apiserver. Run by tools/test-kube, which brings the programs:
etcd, kube-apiserver and helm on the PATH, PyYAML, and in the folder KVMESH_CRDS the definitions that the chart's options need."""

import json
import os
import pathlib
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/charts/kvmesh"
VALUES = ROOT / "tests/deploy/values"
START_SECONDS = 180
START_ATTEMPTS = 3
# Every kind of object that a chart of ours makes, by its path in the API.
KINDS = {
    "Deployment": "apis/apps/v1/namespaces/{}/deployments",
    "StatefulSet": "apis/apps/v1/namespaces/{}/statefulsets",
    "Service": "api/v1/namespaces/{}/services",
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
    "ServiceMonitor": "apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
    "PrometheusRule": "apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
    "Certificate": "apis/cert-manager.io/v1/namespaces/{}/certificates",
}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Cluster:
    """etcd and kube-apiserver in `folder`, until stop()."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        try:
            self.run()
        except BaseException:
            self.stop()
            raise

    def run(self):
        folder = self.folder
        client, peer, self.port = free_ports(3)
        self.token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n", encoding="utf-8")
        subprocess.run(["openssl", "genrsa", "-out", folder / "accounts.key", "2048"], check=True, timeout=60, stderr=subprocess.DEVNULL)
        self.start("etcd", "--data-dir", folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{client}",
                   "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                   "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}", "--initial-cluster", f"default=http://127.0.0.1:{peer}",
                   "--unsafe-no-fsync")
        self.start("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{client}", "--bind-address=127.0.0.1",
                   f"--secure-port={self.port}", f"--cert-dir={folder / 'certificates'}", "--endpoint-reconciler-type=none",
                   f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
                   "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={folder / 'accounts.key'}",
                   f"--service-account-signing-key-file={folder / 'accounts.key'}")
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE  # its certificate is its own, made a moment ago
        self.wait_until_ready()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}]}), encoding="utf-8")

    def start(self, program, *arguments):
        log = open(self.folder / f"{program}.log", "w", encoding="utf-8")
        self.processes.append((subprocess.Popen([program, *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT), log))

    def call(self, method, path, body=None):
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}/{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60, context=self.context) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def wait_until_ready(self):
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            for process, log in self.processes:
                if process.poll() is not None:
                    raise AssertionError(pathlib.Path(log.name).read_text(encoding="utf-8")[-3000:])
            try:
                if self.call("GET", "readyz") == "ok":
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"kube-apiserver is not ready after {START_SECONDS} s")

    def define(self, path):
        """Installs the custom resource definitions of a file, and waits until they are served."""
        for document in yaml.safe_load_all(pathlib.Path(path).read_text(encoding="utf-8")):
            if not document:
                continue
            # What a template of its own project would fill in.
            document["metadata"] = {"name": document["metadata"]["name"], "annotations": document["metadata"].get("annotations", {})}
            self.call("POST", "apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
            spec = document["spec"]
            served = f"apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            end = time.monotonic() + START_SECONDS
            while True:
                try:
                    self.call("GET", served)
                    break
                except urllib.error.HTTPError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.2)

    def objects(self, namespace):
        """{(kind, name): object} of everything in a namespace, but for what the server itself puts there."""
        found = {}
        for kind, path in KINDS.items():
            for item in self.call("GET", path.format(namespace))["items"]:
                found[kind, item["metadata"]["name"]] = item
        return found

    def stop(self):
        for process, _ in reversed(self.processes):
            process.terminate()
        for process, log in reversed(self.processes):
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=30)
            log.close()


class KubeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvmesh-kube-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        for attempt in range(START_ATTEMPTS):
            (folder / str(attempt)).mkdir()
            try:
                cls.cluster = Cluster(folder / str(attempt))
                break
            except AssertionError:  # somebody may have taken a port that was free a moment ago
                if attempt + 1 == START_ATTEMPTS:
                    raise
        cls.addClassCleanup(cls.cluster.stop)
        for path in sorted(pathlib.Path(os.environ["KVMESH_CRDS"]).glob("*.yaml")):
            cls.cluster.define(path)

    def helm(self, *arguments, check=True):
        done = subprocess.run(["helm", *map(str, arguments)], text=True, timeout=300, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT,
                              env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.cluster.folder)})
        if check:
            self.assertEqual(0, done.returncode, f"helm {' '.join(map(str, arguments))}\n{done.stdout}")
        return done.stdout

    def documents(self, namespace, *arguments):
        out = self.helm("template", "mesh", CHART, "--namespace", namespace, "--kube-version", "1.37.0", *arguments)
        return [document for document in yaml.safe_load_all(out) if document]

    def rendered(self, namespace, *arguments):
        return {(o["kind"], o["metadata"]["name"]) for o in self.documents(namespace, "--skip-tests", *arguments)}

    def ours(self, namespace):
        return {key: o for key, o in self.cluster.objects(namespace).items()
                if o["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == "mesh"}

    def shards(self, namespace):
        return {name: o["spec"] for (kind, name), o in self.ours(namespace).items() if kind == "StatefulSet" and "shard" in name}

    def test_every_value_set_installs_and_uninstalls_without_a_trace(self):
        for values in sorted(VALUES.glob("*.yaml")):
            namespace = f"set-{values.stem}"
            with self.subTest(values.name):
                notes = self.helm("install", "mesh", CHART, "--namespace", namespace, "--create-namespace", "--values", values)
                self.assertIn("kvmesh generate --router", notes)
                self.assertNotIn("<no value>", notes)
                self.assertEqual(self.rendered(namespace, "--values", values), set(self.ours(namespace)))
                self.helm("uninstall", "mesh", "--namespace", namespace)
                self.assertEqual({}, self.ours(namespace))

    def try_out(self, namespace, document):
        """What the server would answer to the object, taken strictly: a field that it does not know is an error."""
        path = {**KINDS, "Pod": "api/v1/namespaces/{}/pods"}[document["kind"]].format(namespace)
        try:
            self.cluster.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", document)
            return ""
        except urllib.error.HTTPError as error:
            return f"{document['kind']} {document['metadata']['name']}: {json.load(error)['message']}"

    def test_the_server_takes_every_object_strictly(self):
        for values in sorted(VALUES.glob("*.yaml")):
            namespace = f"strict-{values.stem}"
            with self.subTest(values.name):
                self.cluster.call("POST", "api/v1/namespaces", {"metadata": {"name": namespace}})
                documents = self.documents(namespace, "--values", values)
                # Pods are taken only where their account is; nobody makes the usual one here.
                for name in {"default", *(o["spec"].get("serviceAccountName", "default") for o in documents if o["kind"] == "Pod")}:
                    self.cluster.call("POST", f"api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
                refused = [self.try_out(namespace, o) for o in documents if o["kind"] != "ServiceAccount"]
                self.assertEqual([], [message for message in refused if message])
        # It does refuse: this test would see it.
        service = next(o for o in documents if o["kind"] == "Service")
        self.assertIn('unknown field "spec.selectors"', self.try_out(namespace, {**service, "spec": {**service["spec"], "selectors": {}}}))

    def test_upgrades_and_rolls_back(self):
        namespace = "life"
        self.helm("install", "mesh", CHART, "--namespace", namespace, "--create-namespace")
        before = self.shards(namespace)
        self.assertEqual({"mesh-kvmesh-shard-0-15", "mesh-kvmesh-shard-15-30"}, set(before))

        # More replicas and memory: the same objects, changed in place.
        self.helm("upgrade", "mesh", CHART, "--namespace", namespace, "--reset-then-reuse-values", "--set", "shards.kvBudget=1Gi",
                  "--set", "shards.resources.limits.memory=2Gi", "--set", "router.replicas=3")
        after = self.shards(namespace)
        self.assertEqual(set(before), set(after))
        for spec in after.values():
            self.assertIn("--kv-max-bytes=1073741824", spec["template"]["spec"]["containers"][0]["args"])
        self.assertEqual(3, self.ours(namespace)["Deployment", "mesh-kvmesh-router"]["spec"]["replicas"])

        # Another split: other stages, while stores and arbiter stay as they are.
        stores = {key: o["metadata"]["generation"] for key, o in self.ours(namespace).items() if "store" in key[1] or "meta" in key[1]
                  if key[0] == "StatefulSet"}
        self.helm("upgrade", "mesh", CHART, "--namespace", namespace, "--reset-then-reuse-values", "--set-json",
                  'shards.stages=[{"layers":[0,10],"replicas":2},{"layers":[10,20],"replicas":2},{"layers":[20,30],"replicas":2}]')
        self.assertEqual({f"mesh-kvmesh-shard-{layers}" for layers in ("0-10", "10-20", "20-30")}, set(self.shards(namespace)))
        self.assertEqual(stores, {key: self.ours(namespace)[key]["metadata"]["generation"] for key in stores})

        # What the chart refuses changes nothing.
        out = self.helm("upgrade", "mesh", CHART, "--namespace", namespace, "--reset-then-reuse-values", "--set", "model.layers=31", check=False)
        self.assertIn("the last stage ends at 30, but model.layers is 31", out)

        self.helm("rollback", "mesh", "1", "--namespace", namespace)
        self.assertEqual({name: spec["template"] for name, spec in before.items()},
                         {name: spec["template"] for name, spec in self.shards(namespace).items()})
        history = self.helm("history", "mesh", "--namespace", namespace)
        self.assertRegex(history, re.compile(r"^4\s.*deployed\s.*Rollback to 1\s*$", re.M))
        self.helm("uninstall", "mesh", "--namespace", namespace)
        self.assertEqual({}, self.ours(namespace))

    def test_without_the_operators_definitions_the_default_values_need_none(self):
        groups = {kind for kind, _ in self.rendered("default")}
        self.assertEqual(set(), groups & {"ServiceMonitor", "PrometheusRule", "Certificate"})


if __name__ == "__main__":
    unittest.main()
