"""What the chart's objects have to be beyond being valid."""

import yaml

PRIVILEGED = {"SYS_ADMIN", "SYS_PTRACE"}


def mistakes(found, files, version):
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
    yield from selectors(daemon_set, by_kind)
    notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
    if notes.count("\n     kubectl") < 3:
        yield "the notes have fewer than three commands"
    if "PrometheusRule" in by_kind:
        yield from rules(by_kind["PrometheusRule"])


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


def rules(found):
    text = yaml.safe_dump(found)
    if "KstrobeDown" in text:
        yield "an alert that is disabled is there"
