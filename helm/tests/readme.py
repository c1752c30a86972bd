"""The README's table of values, from the comments of values.yaml."""

import json

import yaml

BEGIN, END = "<!-- values: written by cargo xtask helm --bless -->\n", "<!-- end of values -->\n"


def documented(text):
    """Values with a comment `# --`: key, default and comment. The first of the mistakes is a value that has none."""
    lines = text.splitlines()
    rows, bare = [], []

    def walk(node, path):
        for key, value in node.value:
            name = f"{path}{key.value}"
            above = lines[key.start_mark.line - 1].strip() if key.start_mark.line else ""
            if above.startswith("# -- "):
                rows.append((name, default(value), above.removeprefix("# -- ")))
            elif isinstance(value, yaml.MappingNode) and value.value:
                walk(value, f"{name}.")
            else:
                bare.append(name)

    walk(yaml.compose(text), "")
    return rows, bare


def default(node):
    value = yaml.safe_load(yaml.serialize(node))
    return json.dumps(value, ensure_ascii=False)


def mistakes(text):
    return [f"values.yaml: {name} has no comment `# --`" for name in documented(text)[1]]


def with_table(readme, text):
    """The README with the table as the values have it."""
    head, rest = readme.split(BEGIN)
    tail = rest.split(END)[1]
    rows = [f"| `{name}` | `{value.replace('|', chr(92) + '|')}` | {comment} |\n" for name, value, comment in documented(text)[0]]
    return head + BEGIN + "| value | default | what |\n|---|---|---|\n" + "".join(rows) + END + tail
