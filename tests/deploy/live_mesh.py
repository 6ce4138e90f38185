"""A mesh of the real programs (KVMESH_BIN_DIR) that speaks TLS, knows tenants, has two replicas of each stage and all three
stores, over the model that tools/test.sh fetches; and Debian's prometheus that scrapes it. All on free ports of this machine."""

import json
import math
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("KVMESH_BIN_DIR", ROOT / "build/dev/bin"))
MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
PATIENCE_SECONDS = 240
START_ATTEMPTS = 3
# Tenants and their limits.
TENANTS = {"acme": {"store_bytes": 1 << 30}, "bolt": {}, "tight": {"tokens_per_minute": 10}}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def accepts(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
        return True
    except OSError:
        return False


class LiveMesh:
    """Runs until stop()."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvmesh-live-"))
        self.restarted = {}  # processes by name
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self):
        certificates = self.folder / "certs"
        subprocess.run([ROOT / "tools/dev-certs", certificates], check=True, timeout=60, stdout=subprocess.DEVNULL)
        clients = {"tenants": []}
        for name, limits in TENANTS.items():
            made = json.loads(self.run("--json", "client-key", "--tenant", name).stdout)
            (self.folder / f"{name}.token").write_text(made["token"], encoding="utf-8")
            clients["tenants"].append({**made["tenant"], "limits": limits})
        (self.folder / "clients.json").write_text(json.dumps(clients), encoding="utf-8")
        up = self.run("up", "--model", MODEL, "--shards", "2", "--replicas", "2", "--threads", "1", "--data-dir", self.folder / "mesh",
                      "--certificates", certificates, "--clients-file", self.folder / "clients.json", "--detach")
        if up.returncode != 0:
            raise AssertionError(f"kvmesh up ended with {up.returncode}: {up.stderr}")
        self.file = json.loads((self.folder / "mesh/mesh.json").read_text(encoding="utf-8"))
        self.router = self.file["router"]
        targets = [(s["name"], s["metrics"]) for s in self.file["services"]]
        for attempt in range(START_ATTEMPTS):
            folder = self.folder / f"prometheus-{attempt}"
            folder.mkdir()
            try:
                self.prometheus = Prometheus(folder, targets)
                break
            except AssertionError:  # somebody may have taken the port that was free a moment ago
                if attempt + 1 == START_ATTEMPTS:
                    raise

    def run(self, *arguments):
        """kvmesh, to its end."""
        return subprocess.run([str(PROGRAMS / "kvmesh"), *map(str, arguments)], text=True, timeout=PATIENCE_SECONDS, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def as_role(self, role, *arguments, tenant=None):
        """kvmesh with a certificate of `role`, and a tenant's token."""
        token = ["--token-file", self.folder / f"{tenant}.token"] if tenant else []
        return self.run("--json", "--tls-dir", self.folder / "certs" / role, *token, *arguments)

    def generate(self, tenant, prompt):
        """The answer; the call must be served."""
        done = self.as_role("client", "generate", "--router", self.router, "--prompt", prompt, "--max-tokens", "4", "--ignore-eos", tenant=tenant)
        if done.returncode != 0:
            raise AssertionError(f"generate as {tenant} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def service(self, name):
        return next(s for s in self.file["services"] if s["name"] == name)

    def restart(self, name):
        """Ends a service as an upgrade does, and starts it again with the same command, on the same address."""
        service = self.service(name)
        command = pathlib.Path(f"/proc/{service['pid']}/cmdline").read_text(encoding="utf-8").rstrip("\0").split("\0")
        command[command.index("--metrics-port") + 1] = service["metrics"].rpartition(":")[2]  # which Prometheus knows
        os.kill(service["pid"], signal.SIGTERM)
        end = time.monotonic() + PATIENCE_SECONDS
        while is_running(service["pid"]):
            if time.monotonic() > end:
                raise AssertionError(f"{name} does not end")
            time.sleep(0.05)
        for attempt in range(START_ATTEMPTS):
            with open(self.folder / f"{name}.again.log", "a", encoding="utf-8") as log:
                process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            self.restarted[name] = process
            service["pid"] = process.pid
            while process.poll() is None:
                if accepts(service["address"]):
                    return
                if time.monotonic() > end:
                    raise AssertionError(f"{name} does not serve again")
                time.sleep(0.05)
            # Somebody may have taken one of its ports for a moment.
            if attempt + 1 == START_ATTEMPTS:
                raise AssertionError((self.folder / f"{name}.again.log").read_text(encoding="utf-8"))
            time.sleep(0.5)

    def stop(self):
        for process in self.restarted.values():
            process.terminate()
            process.wait(timeout=PATIENCE_SECONDS)
        if hasattr(self, "prometheus"):
            self.prometheus.stop()
        self.run("down", "--data-dir", self.folder / "mesh")
        shutil.rmtree(self.folder, ignore_errors=True)


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
        self.path = folder / "prometheus.log"
        self.log = open(self.path, "w", encoding="utf-8")
        self.process = subprocess.Popen(
            [shutil.which("prometheus"), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={self.address}"], stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + PATIENCE_SECONDS
        while not self.ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise AssertionError(self.path.read_text(encoding="utf-8"))
            time.sleep(0.1)

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

    def values(self, query):
        """What the query gives now, by label sets as pairs in order."""
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in self.ask("query", query=query)["result"]}

    def finds(self, query):
        """Whether the query gives a number."""
        return any(not math.isnan(value) for value in self.values(query).values())

    def sum(self, query):
        return sum(self.values(query).values())

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()
