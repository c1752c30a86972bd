"""What the chart's objects have to be beyond being valid."""

import json
import pathlib

import yaml

ROOT = pathlib.Path(__file__).parent.parent.parent
# The job that the project's rules and dashboards go by.
JOB = "kstrobe"


def mistakes(found, files, version, values):
    names = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for _, o in found]
    yield from (f"{name} comes twice" for name in sorted({n for n in names if names.count(n) > 1}, key=str))
    by_kind = {}
    for _, o in found:
        by_kind.setdefault(o["kind"], []).append(o)
    (daemon_set,) = by_kind["DaemonSet"]
    pods = [daemon_set["spec"]["template"]] + by_kind.get("Pod", [])
    for pod in pods:
        yield from volumes(pod["spec"])
        yield from rights(pod, version)
    yield from reachable(daemon_set["spec"]["template"]["spec"]["containers"][0])
    yield from named(daemon_set["spec"]["template"]["spec"]["containers"][0], by_kind)
    yield from selectors(daemon_set, by_kind)
    if not by_kind.get("NetworkPolicy"):
        yield "no NetworkPolicy keeps others from the agents' ports"
    notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
    if notes.count("\n     kubectl") < 3:
        yield "the notes have fewer than three commands"
    for monitor in by_kind.get("PodMonitor", []) + by_kind.get("ServiceMonitor", []):
        yield from job(monitor)
    if values.get("prometheusRule", {}).get("enabled"):
        yield from rules(by_kind["PrometheusRule"], values["prometheusRule"])
    if values.get("dashboards", {}).get("enabled"):
        yield from dashboards(by_kind["ConfigMap"], values["dashboards"].get("histograms", "classic"))


def volumes(spec):
    """Each mount has its volume, and each volume is mounted."""
    for container in spec["containers"]:
        mounted = [m["name"] for m in container.get("volumeMounts", [])]
        there = [v["name"] for v in spec.get("volumes", [])]
        if sorted(mounted) != sorted(there):
            yield f"volumes {there}, mounted {mounted}"
        if any("subPath" in m for m in container.get("volumeMounts", [])):
            yield "a subPath would hide changes of a ConfigMap"


def rights(pod, version):
    """Never privileged; nothing is kept that was not asked for; the profile of AppArmor as the version has it."""
    for container in pod["spec"]["containers"]:
        context = container["securityContext"]
        if context.get("privileged") or context["allowPrivilegeEscalation"] or not context["readOnlyRootFilesystem"]:
            yield f"container {container['name']} may too much: {context}"
        if context["capabilities"]["drop"] != ["ALL"]:
            yield f"container {container['name']} does not drop all capabilities"
        if any(c.startswith("CAP_") for c in context["capabilities"].get("add", [])):
            yield "Kubernetes names capabilities without CAP_"
    if pod["spec"]["containers"][0]["name"] != "kstrobe":
        return
    field = "appArmorProfile" in pod["spec"].get("securityContext", {})
    annotation = any(a.startswith("container.apparmor") for a in pod["metadata"].get("annotations", {}))
    if (field, annotation) != ((True, False) if version >= "1.30" else (False, True)):
        yield f"AppArmor on {version}: field {field}, annotation {annotation}"


def reachable(container):
    """The kubelet's probes ask where the agent listens."""
    (address,) = [a.split("=", 1)[1] for a in container["args"] if a.startswith("--web.listen-address=")]
    host = address.rsplit(":", 1)[0].strip("[]")
    wanted = host if host.startswith("127.") or host == "::1" else None
    for name in ["startupProbe", "livenessProbe", "readinessProbe"]:
        asked = container[name].get("httpGet") or container[name]["tcpSocket"]
        if asked.get("host") != wanted:
            yield f"{name} asks {asked.get('host')}, and the agent listens on {address}"


def named(container, by_kind):
    """The agents answer to the names of their Service, and to no empty one."""
    (names,) = [a.split("=", 1)[1].split(",") for a in container["args"] if a.startswith("--web.allowed-host=")]
    for service in by_kind.get("Service", []):
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        for wanted in [name, f"{name}.{namespace}", f"{name}.{namespace}.svc", f"*.{name}.{namespace}.svc"]:
            if wanted not in names:
                yield f"the agents do not answer to {wanted}"
    if "" in names:
        yield f"empty names: {names}"


def selectors(daemon_set, by_kind):
    """What selects pods finds the agents and not the tests' pods."""
    agent = daemon_set["spec"]["template"]["metadata"]["labels"]
    selecting = [("DaemonSet", daemon_set["spec"]["selector"]["matchLabels"])]
    selecting += [("Service", o["spec"]["selector"]) for o in by_kind.get("Service", [])]
    selecting += [("NetworkPolicy", o["spec"]["podSelector"]["matchLabels"]) for o in by_kind.get("NetworkPolicy", [])]
    selecting += [("PodMonitor", o["spec"]["selector"]["matchLabels"]) for o in by_kind.get("PodMonitor", [])]
    for kind, labels in selecting:
        if not labels.items() <= agent.items():
            yield f"{kind} does not select the agents: {labels}"
        for pod in by_kind.get("Pod", []):
            if labels.items() <= pod["metadata"]["labels"].items():
                yield f"{kind} selects {pod['metadata']['name']}"
    for monitor in by_kind.get("ServiceMonitor", []):
        services = by_kind["Service"]
        if not any(monitor["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items() for s in services):
            yield "the ServiceMonitor does not select the Service"


def job(monitor):
    """What is scraped has the job that rules and dashboards ask for, whatever the objects are called."""
    for endpoint in monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]:
        if {"targetLabel": "job", "replacement": JOB} not in endpoint["relabelings"]:
            yield f"{monitor['kind']} does not set the job {JOB}"


def rules(found, values):
    """The project's rules, all of them but what the values leave out."""
    form = values.get("objectives", "classic")
    names = ["kstrobe-alerts"] + ([] if form == "none" else [f"kstrobe-slo-{form}"])
    groups = [g for n in names for g in yaml.safe_load((ROOT / "dashboards/rules" / f"{n}.yaml").read_text())["groups"]]
    shipped = [rule for g in groups for rule in g["rules"]]
    disabled = values.get("disabled", [])
    yield from (f"there is no alert {name} to be disabled" for name in disabled if name not in [r.get("alert") for r in shipped])
    own = [rule for g in values.get("extraGroups", []) for rule in g["rules"]]
    wanted = [essence(rule) for rule in shipped + own if rule.get("alert") not in disabled]
    there = [essence(rule) for o in found for g in o["spec"]["groups"] for rule in g["rules"]]
    if len(shipped) < 100 and form != "none" or sorted(wanted, key=str) != sorted(there, key=str):
        yield f"{len(there)} rules, and {len(wanted)} were wanted"
    for rule in (rule for o in found for g in o["spec"]["groups"] for rule in g["rules"] if "alert" in rule):
        missing = values.get("alertLabels", {}).items() - rule["labels"].items() if rule["alert"] not in [r["alert"] for r in own] else {}
        url = rule["annotations"].get("runbook_url", "")
        if missing or values.get("runbookUrl") and url and not url.startswith(values["runbookUrl"]):
            yield f"alert {rule['alert']}: {missing} missing, {url}"


def essence(rule):
    return (rule.get("alert"), rule.get("record"), rule["expr"].strip(), rule.get("for"))


def dashboards(found, histograms):
    """The project's dashboards for a form of histograms, each in an object of its own."""
    there = {}
    for o in found:
        there |= {k: json.loads(v) for k, v in o.get("data", {}).items() if k.endswith(".json")}
    wanted = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards/grafana" / histograms).glob("*.json")}
    if not wanted or there != wanted:
        yield f"dashboards {sorted(there)}, and {sorted(wanted)} were wanted"
