// kstrobe's dashboards, recording rules and alerts for users of jsonnet:
//
//   local kstrobe = (import 'dashboards/jsonnet/mixin.libsonnet') + { _config+:: { histograms: 'native' } };
//   { 'kstrobe.rules.json': kstrobe.prometheusRules + kstrobe.prometheusAlerts }
//
// What it imports is made by `cargo xtask mixin`. Any jsonnet from 0.17 will do; nothing else is needed.
{
  _config+:: {
    // Matcher of the agents' scrape job, in rules and alerts.
    kstrobeSelector: 'job="kstrobe"',
    // What dashboards and the objectives' rules read: 'classic' buckets or 'native' histograms.
    histograms: 'classic',
    // Names of the objectives to have rules of (`sloth_slo`); null for all of them.
    objectives: null,
    // %s is the name of the alert.
    runbookURLPattern: (import 'generated/runbooks.json'),
    dashboardTags: ['kstrobe'],
    dashboardRefresh: '1m',
  },

  local config = $._config,
  local all = if config.histograms == 'native'
  then import 'generated/slo-native.json'
  else import 'generated/slo-classic.json',
  local boards = (import 'generated/dashboards.libsonnet')[config.histograms],
  local chosen(objective) = config.objectives == null || std.member(config.objectives, objective.name),

  local rule(r) = r {
    expr: std.strReplace(super.expr, 'job="kstrobe"', config.kstrobeSelector),
  } + if std.objectHas(r, 'alert') then {
    annotations+: { runbook_url: config.runbookURLPattern % r.alert },
  } else {},
  local group(g) = g { rules: std.map(rule, super.rules) },
  local groups(kind) = std.flattenArrays([objective[kind] for objective in all if chosen(objective)]),

  grafanaDashboards+:: {
    [file]: boards[file] {
      tags: config.dashboardTags,
      refresh: config.dashboardRefresh,
    }
    for file in std.objectFields(boards)
  },

  prometheusRules+:: {
    groups+: std.map(group, groups('recordings')),
  },

  prometheusAlerts+:: {
    groups+: std.map(group, (import 'generated/alerts.json') + groups('alerts')),
  },
}
