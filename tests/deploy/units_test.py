#!/usr/bin/env python3
"""Tests of deploy/systemd and deploy/compose: flags that the programs have, and time enough to stop."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "build/tools/python"))
import yaml  # noqa: E402  (PyYAML, which tools/test.sh puts there)

UNITS = ROOT / "deploy/systemd"
COMPOSE = ROOT / "deploy/compose"


def known_flags(program):
    usage = subprocess.run([f"{os.environ['KVMESH_BIN_DIR']}/{program}", "--help"], text=True, timeout=60, check=True,
                           stdout=subprocess.PIPE).stdout
    return set(re.findall(r"--[a-z_-]+", usage))


def flag(arguments, name, default=0):
    found = re.search(rf"{name}[= ](\d+)", arguments)
    return int(found[1]) if found else default


def seconds_needed(arguments):
    return flag(arguments, "--drain-seconds") + flag(arguments, "--save-timeout")


class UnitsTest(unittest.TestCase):
    def units(self):
        for path in sorted(UNITS.glob("*.service")):
            text = path.read_text(encoding="utf-8")
            command = re.search(r"^ExecStart=/usr/bin/(\S+) (.*)$", text, re.M)
            component = re.search(r"^EnvironmentFile=/etc/kvmesh/(\S+)\.env$", text, re.M)[1]
            examples = sorted((UNITS / "examples").glob(component.replace("%i", "*") + ".env"))
            self.assertTrue(examples, path.name)
            yield path, text, command[1], command[2], "\n".join(e.read_text(encoding="utf-8") for e in examples)

    def test_flags_of_units_and_their_examples_exist(self):
        for path, _, program, arguments, examples in self.units():
            with self.subTest(path.name):
                lines = [line for line in examples.splitlines() if not line.startswith("#")]
                used = set(re.findall(r"--[a-z-]+", arguments + " ".join(lines)))
                self.assertEqual(set(), used - known_flags(program))

    def test_shards_may_call_every_store_and_nothing_else(self):
        examples = {path.stem: path.read_text(encoding="utf-8") for path in (UNITS / "examples").glob("*.env")}
        listening = {re.search(r"--listen (\S+)", text)[1] for name, text in examples.items() if name.startswith("blob")}
        self.assertEqual(3, len(listening))
        self.assertEqual(listening, set(re.search(r"--stores (\S+)", examples["shard-0-15"])[1].split(",")))
        services = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]
        advertised = set(re.findall(r"--advertise=([^'\",]+)", str(services)))
        self.assertEqual(3, len(advertised))
        for name in ("shard-0", "shard-1"):
            (allowed,) = [argument for argument in services[name]["command"] if argument.startswith("--stores=")]
            self.assertEqual(advertised, set(allowed.removeprefix("--stores=").split(",")))

    def test_units_leave_time_to_drain_and_save(self):
        for path, text, _, arguments, _ in self.units():
            with self.subTest(path.name):
                self.assertGreater(flag(text, "TimeoutStopSec"), seconds_needed(arguments))

    def test_units_run_as_nobody_in_particular_and_write_nothing_but_their_state(self):
        for path, text, *_ in self.units():
            with self.subTest(path.name):
                for setting in ("User=kvmesh", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet=\n", "PartOf=kvmesh.target"):
                    self.assertIn(setting, text)


class ComposeTest(unittest.TestCase):
    def setUp(self):
        self.services = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]
        self.ours = {name: service for name, service in self.services.items() if name != "prometheus"}
        self.assertEqual(7, len(self.ours))

    def test_flags_exist_and_peers_are_services(self):
        for name, service in self.ours.items():
            with self.subTest(name):
                program, *arguments = service["command"]
                used = {argument.split("=")[0] for argument in arguments}
                self.assertEqual(set(), used - known_flags(pathlib.PurePath(program).name))
                for host in re.findall(r"(?:--(?:meta|peers|shards|advertise)=|,)([a-z0-9-]+):50051", " ".join(arguments)):
                    self.assertIn(host, self.services)

    def test_services_are_confined_and_have_time_to_stop(self):
        for name, service in self.ours.items():
            with self.subTest(name):
                self.assertTrue(service["read_only"])
                self.assertEqual(["ALL"], service["cap_drop"])
                grace = int(service["stop_grace_period"].removesuffix("s"))
                self.assertGreater(grace, seconds_needed(" ".join(service["command"])))

    def test_prometheus_scrapes_every_service(self):
        config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"))
        self.assertEqual(set(self.ours), set(config["scrape_configs"][0]["dns_sd_configs"][0]["names"]))
        for volume in self.services["prometheus"]["volumes"]:
            self.assertTrue((COMPOSE / volume.split(":")[0]).exists(), volume)


if __name__ == "__main__":
    unittest.main()
