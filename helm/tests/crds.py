"""Definitions of custom resources: valid, structural, and about objects that people write."""

import copy
import functools

import celpy
import jsonschema
import kubernetes_validate
import yaml

OBJECT = {"type": "object"}
# Words of OpenAPI that Kubernetes has in a structural schema.
VALUE = {"type", "properties", "items", "additionalProperties", "required", "enum", "format", "pattern", "default", "description", "nullable",
         "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems",
         "minProperties", "maxProperties", "title", "example", "externalDocs", "not", "allOf", "anyOf", "oneOf"}
# Inside `not`, `allOf`, `anyOf` and `oneOf` a schema says no more than which values are right.
NOT_INSIDE = {"type", "default", "description", "additionalProperties", "nullable"}


def mistakes(definitions, versions):
    """Of all definitions, each a mapping."""
    for crd in definitions:
        name = crd["metadata"]["name"]
        for version in versions:
            try:
                kubernetes_validate.validate(crd, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{name} on {version}: {error.message}"
        spec = crd["spec"]
        if name != f"{spec['names']['plural']}.{spec['group']}":
            yield f"{name} is not named after its plural and group"
        if [v["storage"] for v in spec["versions"]].count(True) != 1:
            yield f"{name} has not one version that is stored"
        for version in spec["versions"]:
            root = version["schema"]["openAPIV3Schema"]
            if root.get("type") != "object" or root.get("properties", {}).get("metadata", OBJECT) != OBJECT:
                yield f"{name}: the root is an object whose metadata are Kubernetes' own"
            yield from (f"{name}: {m}" for m in structural(root, ""))
            for column in version.get("additionalPrinterColumns", []):
                if not there(root, column["jsonPath"]):
                    yield f"{name}: the column {column['name']} shows {column['jsonPath']}, which the schema does not have"


def structural(schema, path, inside=False):
    """What the API server wants of a schema before it drops unknown fields by it."""
    extensions = {key for key in schema if key.startswith("x-kubernetes-")}
    for key in set(schema) - VALUE - extensions:
        yield f"{path or '/'}: `{key}` is not for a structural schema"
    if inside and (wrong := NOT_INSIDE & set(schema)):
        yield f"{path}: {sorted(wrong)} inside a condition"
    typed = "type" in schema or "x-kubernetes-int-or-string" in schema or "x-kubernetes-preserve-unknown-fields" in schema
    if not inside and not typed:
        yield f"{path or '/'}: has no type"
    if "properties" in schema and "additionalProperties" in schema:
        yield f"{path or '/'}: properties and additionalProperties exclude each other"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{path}: an array of nothing"
    for key in set(schema.get("required", [])) - set(schema.get("properties", {})):
        if not inside:
            yield f"{path or '/'}: requires {key}, which it does not have"
    for key, part in schema.get("properties", {}).items():
        yield from structural(part, f"{path}/{key}", inside)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from structural(schema[key], f"{path}/{key}", inside)
    for key in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(key, []):
            yield from structural(part, f"{path}/{key}", True)


def there(schema, path):
    """Whether a simple JSONPath leads to a field."""
    for word in path.strip(".").split("."):
        if word == "metadata":
            return True
        word = word.split("[")[0].replace("\\", "")
        schema = schema.get("properties", {}).get(word)
        if schema is None:
            return False
        schema = schema.get("items", schema)
    return True


def wrong_of(o, definitions, old=None):
    """What is wrong with an object, fields that would be dropped among it; `old` is what it was before."""
    group, _, version = o["apiVersion"].partition("/")
    for crd in definitions:
        if (crd["spec"]["group"], crd["spec"]["names"]["kind"]) == (group, o["kind"]):
            for v in crd["spec"]["versions"]:
                if v["name"] == version:
                    schema = v["schema"]["openAPIV3Schema"]
                    validator = jsonschema.Draft7Validator(closed(schema, root=True))
                    values = [m for e in validator.iter_errors(o) for m in words(e)]
                    # The API server looks at rules once the values are right.
                    return values or list(broken_rules(schema, o, old))
    return [f"no definition of {o['kind']} in {o['apiVersion']}"]


def words(error):
    """A mistake of a value, in the API server's words."""
    path = ".".join(map(str, error.absolute_path))
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        return [f'unknown field "{path}.{key}"' for key in error.instance if key not in known]
    if error.validator == "required":
        return [f"{path}.{key}: Required value" for key in error.validator_value if key not in error.instance]
    if error.validator == "enum":
        return [f'{path}: Unsupported value: "{error.instance}"']
    if error.validator == "anyOf":
        return [f'"{path}" must validate at least one schema (anyOf)']
    return [f"{path}: {error.message}"]


def rules_of(schema):
    """All rules in a schema."""
    yield from schema.get("x-kubernetes-validations", [])
    for part in [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]:
        if isinstance(part, dict):
            yield from rules_of(part)


@functools.cache
def program(rule):
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def broken_rules(schema, value, old, path=""):
    """What the rules in CEL say of a value; those about a change hold when there was something before."""
    for rule in schema.get("x-kubernetes-validations", []):
        known = {"self": celpy.json_to_cel(value)}
        if "oldSelf" in rule["rule"]:
            if old is None:
                continue
            known["oldSelf"] = celpy.json_to_cel(old)
        try:
            right = program(rule["rule"]).evaluate(known)
        except (celpy.CELEvalError, celpy.CELParseError) as error:
            yield f"{path}: the rule `{rule['rule']}` cannot be evaluated: {error}"
        else:
            if not right:
                yield f"{path}: {rule['message']}"

    def inside(part, key):
        before = old[key] if isinstance(old, dict) and key in old else None
        return broken_rules(part, value[key], before, f"{path}/{key}")

    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        for key in value:
            part = schema.get("properties", {}).get(key, others)
            if isinstance(part, dict):
                yield from inside(part, key)
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from broken_rules(schema["items"], item, None, f"{path}/{number}")


def closed(schema, root=False):
    """The same schema, refusing what it does not have."""
    schema = copy.deepcopy(schema)
    if root:
        schema.setdefault("properties", {}).update({"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}})
    if schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    if schema.pop("x-kubernetes-int-or-string", False):
        schema["type"] = ["integer", "string"]
    if "properties" in schema:
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
        schema["properties"] = {k: closed(p) if isinstance(p, dict) else p for k, p in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = closed(schema[key])
    return schema


def cases(folder):
    """All objects: name of the file, what the object was before, the object, and what refuses it. `NAME.yaml` is right; of
    `wrong_NAME.yaml` the first line says what is said. In `wrong_change_NAME.yaml` the first object is right, and the second
    what becomes of it."""
    for path in sorted(folder.glob("*.yaml")):
        text, old = path.read_text(), None
        expected = text.splitlines()[0].removeprefix("# refused: ") if path.name.startswith("wrong_") else None
        for o in yaml.safe_load_all(text):
            if path.name.startswith("wrong_change_") and old is None:
                yield path.name, None, o, None
                old = o
            else:
                yield path.name, old, o, expected


def objects_checked(folder, definitions):
    """Right and wrong objects, by the definitions alone; an API server's own judgement is in `server.py`."""
    kinds, count, said = set(), 0, []
    for name, old, o, expected in cases(folder):
        found, count = wrong_of(o, definitions, old), count + 1
        said += found
        if expected is None:
            kinds.add(o["kind"])
            yield from (f"{name}: {m}" for m in found)
        elif not any(expected in m for m in found):
            yield f"{name}: expected `{expected}`, got {found}"
    rules = [rule for crd in definitions for v in crd["spec"]["versions"] for rule in rules_of(v["schema"]["openAPIV3Schema"])]
    for rule in rules:
        if not any(m.endswith(f": {rule['message']}") for m in said):
            yield f"{folder.name} has no object that the rule `{rule['rule']}` refuses"
    for crd in definitions:
        if crd["spec"]["names"]["kind"] not in kinds:
            yield f"{folder.name} has no {crd['spec']['names']['kind']} that is right"
    print(f"{len(definitions)} definitions of custom resources, {len(rules)} rules in them, {count} objects of them")
