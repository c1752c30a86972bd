"""Asks an API server: `python server.py URL AUTHORITY DEFINITIONS [CERTIFICATE KEY]`.

It must take the definitions in the folder DEFINITIONS, and judge the objects in `objects` as their names say. AUTHORITY is the
file of the certificate that signs the server's, or its own when it signs itself; CERTIFICATE and KEY are the client's.
"""

import json
import pathlib
import ssl
import sys
import time
import urllib.error
import urllib.request

import crds

URL, AUTHORITY, DEFINITIONS, *IDENTITY = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), *sys.argv[4:]
OBJECTS = pathlib.Path(__file__).parent / "objects"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
READY = f"{URL}/readyz/poststarthook/crd-informer-synced"
# How long a definition may take until objects of it are served.
SERVED_WITHIN_SECONDS = 60
# How long the server may take to start on a busy machine.
READY_WITHIN_SECONDS = 120


def tls():
    context = ssl.create_default_context(cafile=AUTHORITY)
    if IDENTITY:
        context.load_cert_chain(*IDENTITY)
    return context


def ask(method, path, body=None):
    """Status and answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, context=tls()) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def wait():
    """Until the server is there and knows its definitions."""
    for _ in range(READY_WITHIN_SECONDS * 10):
        try:
            with urllib.request.urlopen(READY, context=tls()):
                return
        # No certificate yet, no connection, or not ready.
        except OSError as error:
            why = error
        time.sleep(0.1)
    raise SystemExit(f"the API server is not ready after {READY_WITHIN_SECONDS} s: {why}")


def define(crd):
    """Has the server take a definition, and waits until it serves objects of it."""
    name = crd["metadata"]["name"]
    status, answer = ask("POST", DEFINITION, crd)
    if status != 201:
        raise SystemExit(f"the API server refuses {name}: {answer['message']}")
    for _ in range(SERVED_WITHIN_SECONDS * 10):
        _, answer = ask("GET", f"{DEFINITION}/{name}")
        conditions = {c["type"]: c for c in answer.get("status", {}).get("conditions", [])}
        if wrong := conditions.get("NonStructuralSchema"):
            raise SystemExit(f"the schema of {name} is not structural: {wrong['message']}")
        if conditions.get("Established", {}).get("status") == "True":
            return
        time.sleep(0.1)
    raise SystemExit(f"the API server does not serve {name} after {SERVED_WITHIN_SECONDS} s: {conditions}")


def undefine(crd):
    """Takes a definition away, so that a chart can bring its own."""
    name = crd["metadata"]["name"]
    ask("DELETE", f"{DEFINITION}/{name}")
    for _ in range(SERVED_WITHIN_SECONDS * 10):
        if ask("GET", f"{DEFINITION}/{name}")[0] == 404:
            return
        time.sleep(0.1)
    raise SystemExit(f"the API server has not deleted {name} after {SERVED_WITHIN_SECONDS} s")


def paths(definitions):
    """Where objects of a kind are, by the kind."""
    for crd in definitions:
        spec = crd["spec"]
        for version in spec["versions"]:
            path = f"/apis/{spec['group']}/{version['name']}/namespaces/kstrobe/{spec['names']['plural']}"
            yield (f"{spec['group']}/{version['name']}", spec["names"]["kind"]), path


def judged(path, o):
    """What the server says of an object, and what it stored; that is deleted again."""
    name = f"{path}/{o['metadata']['name']}"
    status, answer = ask("POST", f"{path}?fieldValidation=Strict", o)
    if status != 201:
        return answer["message"]
    # A status is a request of its own.
    said = None
    if "status" in o:
        status, answer = ask("PUT", f"{name}/status?fieldValidation=Strict", {**answer, "status": o["status"]})
        said = None if status == 200 and answer["status"] == o["status"] else f"status: {answer}"
    elif answer["spec"] != o["spec"]:
        said = f"stored as {answer['spec']}"
    ask("DELETE", name)
    return said


def changed(path, old, o):
    """What the server says when an object becomes another."""
    name = f"{path}/{o['metadata']['name']}"
    status, answer = ask("POST", f"{path}?fieldValidation=Strict", old)
    if status != 201:
        raise SystemExit(f"the API server refuses {name} before its change: {answer['message']}")
    version = answer["metadata"]["resourceVersion"]
    same, again = ask("PUT", f"{name}?fieldValidation=Strict", answer)
    if same != 200:
        raise SystemExit(f"the API server refuses {name} as it is: {again['message']}")
    changed_one = {**o, "metadata": {**answer["metadata"], "resourceVersion": version}}
    status, answer = ask("PUT", f"{name}?fieldValidation=Strict", changed_one)
    ask("DELETE", name)
    return None if status == 200 else answer["message"]


def main():
    wait()
    definitions = [json.loads(path.read_text()) for path in sorted(DEFINITIONS.glob("*.json"))]
    for crd in definitions:
        define(crd)
    where, wrong, count = dict(paths(definitions)), [], 0
    for name, old, o, expected in crds.cases(OBJECTS):
        path = where[o["apiVersion"], o["kind"]]
        o["metadata"]["namespace"] = "kstrobe"
        said, count = changed(path, old, o) if old else judged(path, o), count + 1
        if expected is None and said:
            wrong.append(f"{name}: {said}")
        elif expected and expected not in (said or ""):
            wrong.append(f"{name}: expected `{expected}`, got: {said or 'accepted'}")
    for crd in definitions:
        undefine(crd)
    for mistake in wrong:
        print(mistake, file=sys.stderr)
    print(f"a real API server takes {len(definitions)} definitions and judges {count} objects; {len(wrong)} mistakes")
    return 1 if wrong or not definitions or not count else 0


if __name__ == "__main__":
    sys.exit(main())
