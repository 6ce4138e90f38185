"""Lays out JSON schemas as kubeconform looks for them.

usage: kube_schemas.py TO WHEEL "1.30.0 1.37.0" CRD.yaml...

TO/v1.30.0-standalone-strict/KIND-GROUP-VERSION.json from the wheel of kubernetes-validate, and
TO/custom/KIND_VERSION.json from custom resource definitions. Strict: what a schema does not name is refused.
"""

import json
import pathlib
import sys
import zipfile

import yaml


# What a chart of ours may hold.
KINDS = ["configmap-v1", "deployment-apps-v1", "horizontalpodautoscaler-autoscaling-v2", "networkpolicy-networking-v1",
         "pod-v1", "poddisruptionbudget-policy-v1", "secret-v1", "service-v1", "serviceaccount-v1", "statefulset-apps-v1"]
LOCAL = "#/$defs/"
REFERENCE = f"/api/_definitions.json{LOCAL}"


def references(schema):
    """Names of the definitions that `schema` refers to itself."""
    if isinstance(schema, list):
        return set().union(*map(references, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    names = set().union(*map(references, schema.values())) if schema else set()
    target = schema.get("$ref")
    if isinstance(target, str):
        names.add(target.split(LOCAL)[1])  # definitions refer to one another without the file's name
    return names


def standalone(schema, definitions):
    """`schema` with the definitions that it needs inside it, as kubeconform follows no references to other files."""
    needed, found = {}, references(schema)
    while found:
        name = found.pop()
        if name not in needed:
            needed[name] = definitions[name]
            found |= references(definitions[name])
    whole = {key: value for key, value in schema.items() if key != "$id"}
    return json.dumps({**whole, "$defs": needed}).replace(f'"{REFERENCE}', f'"{LOCAL}')


def unpack_kubernetes(wheel_path, versions, to):
    """Writes the strict schemas of KINDS in `versions` (of which the wheel knows major and minor alone)."""
    with zipfile.ZipFile(wheel_path) as wheel:
        for version in versions:
            major, minor, _ = version.split(".")
            folder = f"kubernetes_validate/kubernetes-json-schema/v{major}.{minor}.0-local-strict"
            definitions = json.loads(wheel.read(f"{folder}/_definitions.json"))["$defs"]
            target = to / f"v{version}-standalone-strict"
            target.mkdir(parents=True)
            for kind in KINDS:
                schema = json.loads(wheel.read(f"{folder}/{kind}.json"))
                (target / f"{kind}.json").write_text(standalone(schema, definitions), encoding="utf-8")


def closed(schema):
    """`schema` with every object closed that names its properties, unless it says that it keeps others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        result.setdefault("additionalProperties", False)
    return result


def convert_definition(path, to):
    """Writes the schema of every version of one custom resource definition."""
    (to / "custom").mkdir(parents=True, exist_ok=True)
    for document in yaml.safe_load_all(pathlib.Path(path).read_text(encoding="utf-8")):
        if not document or document.get("kind") != "CustomResourceDefinition":
            continue
        kind = document["spec"]["names"]["kind"].lower()
        for version in document["spec"]["versions"]:
            schema = closed(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            (to / "custom" / f"{kind}_{version['name']}.json").write_text(json.dumps(schema), encoding="utf-8")


def main():
    to, wheel, versions, *definitions = sys.argv[1:]
    to = pathlib.Path(to)
    unpack_kubernetes(wheel, versions.split(), to)
    for definition in definitions:
        convert_definition(definition, to)


if __name__ == "__main__":
    main()
