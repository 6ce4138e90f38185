#!/usr/bin/env python3
"""Tests of deploy/alerts and what explains it, without a mesh: promtool's unit tests, the runbook, the dashboards' form."""

import json
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/alerts/kvmesh.rules.yaml"
UNIT_TESTS = ROOT / "tests/deploy/alerts_test.yaml"


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], text=True, timeout=60, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class RulesTest(unittest.TestCase):
    def setUp(self):
        self.alerts = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
        self.assertGreater(len(self.alerts), 15)

    def test_rules_are_well_formed(self):
        done = promtool("check", "rules", str(RULES))
        self.assertEqual(0, done.returncode, done.stdout)

    def test_alerts_fire_when_they_should_and_not_before(self):
        done = promtool("test", "rules", str(UNIT_TESTS))
        self.assertEqual(0, done.returncode, done.stdout)

    def test_every_alert_has_a_unit_test(self):
        tested = re.findall(r"^      - alertname: (\w+)$", UNIT_TESTS.read_text(encoding="utf-8"), re.M)
        self.assertEqual(sorted(self.alerts), sorted(tested))

    def test_every_alert_has_its_part_of_the_runbook_and_none_is_left_over(self):
        runbook = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
        parts = re.split(r"^## ", runbook, flags=re.M)[1:]
        self.assertEqual(sorted(self.alerts), sorted(part.split("\n")[0] for part in parts))
        for part in parts:
            for word in ("**Means:**", "**Look at:**", "**Do:**"):
                self.assertIn(word, part)
        links = re.findall(r"runbook: docs/runbook\.md#(\w+)", RULES.read_text(encoding="utf-8"))
        self.assertEqual([alert.lower() for alert in self.alerts], links)

    def test_dashboards_are_whole(self):
        uids = set()
        for path in sorted((ROOT / "deploy/dashboards").glob("*.json")):
            with self.subTest(path.name):
                dashboard = json.loads(path.read_text(encoding="utf-8"))
                uids.add(dashboard["uid"])
                ids = [panel["id"] for panel in dashboard["panels"]]
                self.assertEqual(len(ids), len(set(ids)))
                for panel in dashboard["panels"]:
                    if panel["type"] == "row":
                        continue
                    self.assertTrue(panel["description"], panel["title"])
                    self.assertTrue(panel["targets"], panel["title"])
                    place = panel["gridPos"]
                    self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
        self.assertEqual(4, len(uids))


if __name__ == "__main__":
    unittest.main()
