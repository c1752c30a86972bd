"""The chart in a cluster, by Helm: `python release.py ACTION ..`.

`definitions FOLDER` writes a file for each definition of a custom resource, `render VALUES` prints all objects; both need no cluster.
`install KUBECONFIG VALUES`, `upgrade KUBECONFIG VALUES`, `rollback KUBECONFIG`, `test KUBECONFIG`, `status KUBECONFIG` and
`uninstall KUBECONFIG` are what Helm calls so, and print the release's revision and state.
"""

import json
import pathlib
import sys
import tempfile

import helm_python
import yaml

CHART = pathlib.Path(__file__).parent.parent / "kstrobe"
NAME = NAMESPACE = "kstrobe"
# What a chart that is rendered without a cluster takes for the cluster's version.
RENDERED_FOR = "1.30"
TIMEOUT_SECONDS = 300


def packed(folder):
    """The chart as it is shipped: what links lead to is in it."""
    return helm_python.package(CHART, destination=folder)


def values(path):
    return yaml.safe_load(pathlib.Path(path).read_text())


def definitions(chart, folder):
    into = pathlib.Path(folder)
    into.mkdir(parents=True)
    for crd in rendered(chart, {"customResources": {"enabled": True}}):
        if crd["kind"] == "CustomResourceDefinition":
            (into / f"{crd['metadata']['name']}.json").write_text(json.dumps(crd, indent=1))


def rendered(chart, given):
    """All objects, rendered without a cluster."""
    given = {**given, "kubeVersion": RENDERED_FOR, "tests": {"enabled": False}}
    files = helm_python.Chart.load(chart).render(given, name=NAME, namespace=NAMESPACE)
    texts = (text for name, text in sorted(files.items()) if not name.endswith("NOTES.txt"))
    return [o for text in texts for o in yaml.safe_load_all(text) if o]


def render(chart, path):
    print(yaml.safe_dump_all(rendered(chart, values(path))))


def released(chart, action, kubeconfig, *more):
    helm = helm_python.Config(kubeconfig_path=kubeconfig, namespace=NAMESPACE)
    waited = {"timeout": TIMEOUT_SECONDS, "wait": "watcher"}
    if action == "install":
        helm.install(chart, NAME, values(more[0]), namespace=NAMESPACE, create_namespace=True, **waited)
    elif action == "upgrade":
        helm.upgrade(chart, NAME, values(more[0]), namespace=NAMESPACE, **waited)
    elif action == "rollback":
        helm.rollback(NAME, **waited)
    elif action == "test":
        helm.test(NAME, timeout=TIMEOUT_SECONDS)
    elif action == "uninstall":
        helm.uninstall(NAME, **waited)
        return
    elif action != "status":
        raise SystemExit(f"unknown action {action}")
    last = helm.history(NAME)[-1]
    print(json.dumps(last))


def main():
    action, *more = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        chart = packed(folder)
        try:
            if action == "definitions":
                definitions(chart, *more)
            elif action == "render":
                render(chart, *more)
            else:
                released(chart, action, *more)
        except helm_python.HelmError as error:
            raise SystemExit(f"helm: {error}") from error


if __name__ == "__main__":
    main()
