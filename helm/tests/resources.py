"""The custom resources: their definitions, and objects that these take or refuse."""

import pathlib

import jsonschema
import kubernetes_validate
import yaml

OBJECTS = pathlib.Path(__file__).parent / "resources"


def definitions(chart):
    """Definitions in the chart, each with its file's name."""
    return [(path.name, yaml.safe_load(path.read_text())) for path in sorted((chart / "crds").glob("*.yaml"))]


def mistakes(chart, versions):
    found = definitions(chart)
    for name, definition in found:
        for version in versions:
            try:
                kubernetes_validate.validate(definition, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"crds/{name} on {version}: {error.message}"
        for served in definition["spec"]["versions"]:
            schema = served["schema"]["openAPIV3Schema"]
            yield from (f"crds/{name}: {m}" for m in structural(schema, ""))
            yield from (f"crds/{name}: {m}" for m in columns(served, schema))
    yield from objects({d["spec"]["names"]["kind"]: d for _, d in found})


def structural(schema, path):
    """What the API server asks of a schema before it takes it, so that it can prune what is not in it."""
    free = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-int-or-string")
    if "type" not in schema and not free:
        yield f"{path or '/'}: no type"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{path}: an array without items"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path}: properties and additionalProperties exclude each other"
    for rule in schema.get("x-kubernetes-validations", []):
        if not rule.get("message"):
            yield f"{path}: a rule without a message: {rule['rule']}"
    for key, part in schema.get("properties", {}).items():
        yield from structural(part, f"{path}/{key}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from structural(schema[key], f"{path}/{key}")


def columns(served, schema):
    """Columns that `kubectl get` shows are paths of the schema."""
    for column in served["additionalPrinterColumns"]:
        part = schema
        for key in column["jsonPath"].lstrip(".").split("."):
            part = part.get("properties", {}).get(key)
            if part is None:
                break
        if part is None and column["jsonPath"] != ".metadata.creationTimestamp":
            yield f"the column {column['name']} shows {column['jsonPath']}, which there is not"


def closed(schema):
    """The same schema for jsonschema, without room for keys that the API server would drop without a word."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    out = {k: v for k, v in schema.items() if not k.startswith("x-kubernetes")}
    if "properties" in schema:
        out["properties"] = {k: closed(v) for k, v in schema["properties"].items()}
        out["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            out[key] = closed(schema[key])
    return out


def objects(definitions):
    """`right-*.yaml` are taken, `wrong-*.yaml` refused with the words of their first line. CEL rules are the API server's alone."""
    paths = sorted(OBJECTS.glob("*.yaml"))
    for path in paths:
        text = path.read_text()
        o = yaml.safe_load(text)
        version = next(v for v in definitions[o["kind"]]["spec"]["versions"] if o["apiVersion"].endswith(v["name"]))
        schema = closed(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        errors = [e.message for e in jsonschema.Draft7Validator(schema).iter_errors(o)]
        if path.name.startswith("right-"):
            yield from (f"{path.name}: {e}" for e in errors)
            continue
        expected = text.splitlines()[0].removeprefix("# refused: ")
        if not any(expected in e for e in errors):
            yield f"{path.name}: expected `{expected}`, got: {errors}"
    print(f"{len(definitions)} custom resources, {len(paths)} objects of them checked")
