"""Checks the chart: `python chart.py OUT [--bless]`.

What it renders is left in the folder OUT for checks in other languages: the agent's files of each case, the definitions of
custom resources, and the Prometheus operator's objects.
"""

import functools
import gzip
import json
import pathlib
import sys

import helm_python
import kubernetes_validate
import yaml

import crds
import readme
import schema
import shape

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parent.parent
CHART = TESTS.parent / "kstrobe"
# Where the chart is packed, and what it renders left.
OUT = pathlib.Path(sys.argv[1])
MANIFESTS = ROOT / "helm/manifests/kstrobe.yaml"
VERSIONS = ["1.28", "1.30", "1.33", "1.37"]
# What `helm/manifests/kstrobe.yaml` is rendered for: the oldest with the field `appArmorProfile`.
MANIFESTS_VERSION = "1.30"

# Of the API server.
MOST_OF_A_SECRET = 1 << 20

MANIFESTS_HEAD = """\
# kstrobe without Helm: kubectl apply -f helm/manifests/kstrobe.yaml
# Rendered from helm/kstrobe by `cargo xtask helm --bless`, for Kubernetes {version} and newer.
apiVersion: v1
kind: Namespace
metadata:
  name: kstrobe
  labels:
    # The agents need hostPath, hostPID and three capabilities, which are outside the standard `baseline`.
    pod-security.kubernetes.io/enforce: privileged
"""


def read(path):
    return yaml.safe_load(path.read_text()) or {}


@functools.cache
def packed():
    """The chart as it is shipped: what links lead to is in it."""
    return helm_python.package(CHART, destination=OUT)


def render(values, version=None):
    """Files of the rendered chart, by name."""
    if version:
        values = {**values, "kubeVersion": version}
    return helm_python.Chart.load(packed()).render(values, name="kstrobe", namespace="kstrobe")


def objects(files):
    """Objects of rendered files, each with the file's name."""
    texts = {name: text for name, text in files.items() if not name.endswith("NOTES.txt")}
    return [(name, o) for name, text in sorted(texts.items()) for o in yaml.safe_load_all(text) if o]


def lint(values, version):
    result = helm_python.lint(packed(), values, strict=True, namespace="kstrobe", kube_version=version)
    return [f"lint: {m['path']}: {m['error']}" for m in result["messages"]] + result["errors"]


def validate(found, version):
    """Mistakes of objects by Kubernetes' own schemas, unknown keys among them."""
    for name, o in found:
        if o["apiVersion"].startswith("monitoring.coreos.com/"):
            continue
        try:
            kubernetes_validate.validate(o, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"{name}: {o['kind']}/{o['metadata']['name']} on {version}: {error.message}"


def cases():
    """Every `ci/*-values.yaml` on every version."""
    operator, count = [], 0
    for path in sorted((CHART / "ci").glob("*-values.yaml")):
        case, values = path.name.removesuffix("-values.yaml"), read(path)
        for version in VERSIONS:
            yield from (f"{case} on {version}: {m}" for m in lint({**values, "kubeVersion": version}, version))
            files = render(values, version)
            found = objects(files)
            count += len(found)
            yield from (f"{case}: {m}" for m in validate(found, version))
            yield from (f"{case} on {version}: {m}" for m in shape.mistakes(found, files, version, values))
        operator += [{"of": case, "object": o} for _, o in found if o["apiVersion"].startswith("monitoring.coreos.com/")]
        keep(OUT / "cases" / case, found)
    (OUT / "operator.json").write_text(json.dumps(operator))
    print(f"{count} objects linted, rendered and validated for Kubernetes {', '.join(VERSIONS)}")


def keep(folder, found):
    """Leaves the files that the agent would see, its pod, and what it may ask the API server."""
    bound = [o["roleRef"] for _, o in found if o["kind"].endswith("RoleBinding")]
    roles = [(r["kind"], r["name"]) for r in bound]
    rules = [rule for _, o in found if (o["kind"], o["metadata"]["name"]) in roles for rule in o["rules"]]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.json").write_text(json.dumps(rules))
    for _, o in found:
        if o["kind"] == "ConfigMap" and o["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "kstrobe":
            into = folder / o["metadata"]["name"].removeprefix("kstrobe").removeprefix("node-latency").lstrip("-")
            texts = o.get("data", {})
        elif o["kind"] == "Secret":
            into, texts = folder / "web", o["stringData"]
        elif o["kind"] == "DaemonSet":
            into, texts = folder, {"daemonset.json": json.dumps(o, indent=1)}
        else:
            continue
        into.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (into / name).write_text(text)


def custom_resources():
    """The chart's own definitions, and objects of them."""
    found = objects(render({"customResources": {"enabled": True}}))
    definitions = [o for _, o in found if o["kind"] == "CustomResourceDefinition"]
    # Helm installs what lies there once and never upgrades it.
    if helm_python.Chart.load(packed()).crds:
        yield "the chart has a folder crds/"
    folder = OUT / "definitions"
    folder.mkdir()
    for crd in definitions:
        (folder / f"{crd['metadata']['name']}.json").write_text(json.dumps(crd, indent=1))
    yield from crds.mistakes(definitions, VERSIONS)
    yield from crds.objects_checked(TESTS / "objects", definitions)


def size():
    """What Helm keeps of a release in a Secret: the chart and what it became, packed."""
    files = render({"dashboards": {"enabled": True}, "prometheusRule": {"enabled": True}})
    bytes_ = (pathlib.Path(packed()).stat().st_size + len(gzip.compress("".join(files.values()).encode()))) * 4 // 3
    print(f"a release with everything takes about {bytes_ // 1024} KiB of a Secret")
    if bytes_ > MOST_OF_A_SECRET:
        yield f"Helm cannot keep a release of {bytes_} bytes: a Secret has {MOST_OF_A_SECRET} at most"


def refused():
    """Every `wrong/*.yaml` is refused, with the words in its first line."""
    paths = sorted((TESTS / "wrong").glob("*.yaml"))
    for path in paths:
        expected = path.read_text().splitlines()[0].removeprefix("# refused: ")
        try:
            render(read(path))
        except helm_python.HelmError as error:
            if expected not in str(error):
                yield f"{path.name}: expected `{expected}`, got: {error}"
        else:
            yield f"{path.name}: not refused"
    print(f"{len(paths)} wrong values refused")


def manifests():
    """The chart's defaults as one file, without what only Helm reads."""
    parts = [MANIFESTS_HEAD.format(version=MANIFESTS_VERSION)]
    values = {"tests": {"enabled": False}}
    for name, text in sorted(render(values, MANIFESTS_VERSION).items()):
        if name.endswith("NOTES.txt"):
            continue
        lines = [line for line in text.splitlines() if not line.strip().startswith("helm.sh/chart:")]
        text = "\n".join(lines).strip().replace("managed-by: Helm", "managed-by: kubectl")
        if text:
            parts.append(text + "\n")
    return "---\n".join(parts)


def plain_manifests():
    """What is rendered for those without Helm is valid on every version that it is for."""
    found = [("helm/manifests/kstrobe.yaml", o) for o in yaml.safe_load_all(manifests())]
    for version in VERSIONS[VERSIONS.index(MANIFESTS_VERSION) :]:
        yield from validate(found, version)


def stand_ins():
    """What the tests' API server and kubelet answer with was never in a cluster: it is valid all the same."""
    paths = sorted((ROOT / "tests/fake-api/objects").glob("*.json"))
    found = [(path.name, json.loads(path.read_text())) for path in paths]
    for version in VERSIONS:
        yield from validate(found, version)
    print(f"{len(found)} objects of the tests' API server validated")


def agrees(path, text, bless):
    """Whether a file has this text; `bless` makes it so."""
    if bless:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        yield f"{path.relative_to(ROOT)} differs from the chart: cargo xtask helm --bless"


def main():
    bless = "--bless" in sys.argv
    OUT.mkdir(parents=True, exist_ok=True)
    values, text = read(CHART / "values.yaml"), (CHART / "values.yaml").read_text()
    found = list(schema.mistakes(json.loads((CHART / "values.schema.json").read_text()), values))
    found += readme.mistakes(text)
    found += agrees(CHART / "README.md", readme.with_table((CHART / "README.md").read_text(), text), bless)
    found += agrees(MANIFESTS, manifests(), bless)
    found += plain_manifests()
    found += stand_ins()
    found += cases()
    found += refused()
    found += custom_resources()
    found += size()
    for mistake in found:
        print(mistake, file=sys.stderr)
    print(f"{len(found)} mistakes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
