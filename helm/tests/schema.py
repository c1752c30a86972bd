"""The schema of the chart's values: closed, and about the same keys as the values."""

# Definitions that others check: Kubernetes its own objects, the agent its own.
OPEN = {"kubernetesObject", "agentObject"}


def mistakes(schema, values):
    yield from closed(schema, "")
    yield from same_keys(schema["properties"], values, "", schema)


def closed(schema, path):
    """Every object says what may be in it."""
    if isinstance(schema, list):
        for item in schema:
            yield from closed(item, path)
        return
    if not isinstance(schema, dict):
        return
    more = schema.get("additionalProperties")
    if schema.get("type") == "object" and more is not False and not isinstance(more, dict):
        name = path.removeprefix("/definitions/")
        if name not in OPEN and path != "/properties/global":
            yield f"values.schema.json: {path or '/'}: an object without `additionalProperties: false`"
    for key, part in schema.items():
        yield from closed(part, f"{path}/{key}")


def same_keys(properties, values, path, schema):
    """Each value has a schema, and each schema a value; lists and maps of the user's are the end of it."""
    for key in sorted(set(values) - set(properties)):
        yield f"values.schema.json: nothing about {path}{key}"
    for key, part in properties.items():
        part = resolved(part, schema)
        if key not in values:
            if key != "global":
                yield f"values.yaml: nothing about {path}{key}, which the schema has"
        elif "properties" in part and values[key] and isinstance(values[key], dict) and not path:
            inner = {k: v for k, v in part["properties"].items() if k in values[key] or nested(v, schema)}
            yield from same_keys(inner, values[key], f"{path}{key}.", schema)


def nested(part, schema):
    return "properties" in resolved(part, schema)


def resolved(part, schema):
    if "$ref" in part:
        return schema["definitions"][part["$ref"].rsplit("/", 1)[1]]
    return part
