// Checks the Prometheus operator's objects that the chart makes: `node crds.mjs OBJECTS.json`, a list of {of, object}.
// The models check values and what is required; Kubernetes drops keys that it does not know, so that these are looked for
// in the models' declarations.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const models = join(here, "node_modules/@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1");

// Where the keys of an object's parts are declared.
const parts = {
  PodMonitor: [["PodMonitorSpec", (o) => [o.spec]], ["PodMetricsEndpoint", (o) => o.spec.podMetricsEndpoints]],
  ServiceMonitor: [["ServiceMonitorSpec", (o) => [o.spec]], ["Endpoint", (o) => o.spec.endpoints]],
  PrometheusRule: [["RuleGroup", (o) => o.spec.groups], ["Rule", (o) => o.spec.groups.flatMap((g) => g.rules)]],
};

const declared = (model) => {
  const text = readFileSync(join(models, `${model}.d.ts`), "utf8").replace(/\/\*[\s\S]*?\*\//g, "");
  const keys = [...text.matchAll(/^ {4}"(\w+)"\??:/gm)].map((match) => match[1]);
  const parents = [...text.matchAll(/interface \w+ extends \w+MonitoringV1(\w+)/g)].flatMap((match) => [...declared(match[1])]);
  return new Set([...keys, ...parents]);
};

const mistakes = async ({ kind, ...object }) => {
  const found = [];
  try {
    const model = (await import(`@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/${kind}`))[kind];
    new model(object).validate();
  } catch (error) {
    found.push(error.message);
  }
  for (const [model, pick] of parts[kind]) {
    const known = declared(model);
    if (known.size === 0) throw new Error(`no keys in ${model}.d.ts`);
    const keys = pick(object).flatMap((part) => Object.keys(part));
    found.push(...keys.filter((key) => !known.has(key)).map((key) => `${model} has no key ${key}`));
  }
  return found;
};

// The check itself: what must be found.
const own = { kind: "PodMonitor", metadata: { name: "x" }, spec: { selector: {}, podMetricsEndpoints: [{ interval: "often", often: 1 }] } };
const expected = await mistakes(own);
if (expected.length !== 2) throw new Error(`a wrong PodMonitor has ${JSON.stringify(expected)}`);

const objects = JSON.parse(readFileSync(process.argv[2], "utf8"));
let wrong = 0;
for (const { of, object } of objects) {
  for (const mistake of await mistakes(object)) {
    console.error(`${of}: ${object.kind}/${object.metadata.name}: ${mistake}`);
    wrong += 1;
  }
}
console.log(`${objects.length} objects of the Prometheus operator, ${wrong} mistakes`);
process.exit(wrong ? 1 : 0);
