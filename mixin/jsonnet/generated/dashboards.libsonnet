// Made by `cargo xtask mixin`; do not edit.
{
  'kstrobe-fleet.json': import '../../../dashboards/kstrobe-fleet.json',
  'kstrobe-node.json': import '../../../dashboards/kstrobe-node.json',
  'kstrobe-syscalls.json': import '../../../dashboards/kstrobe-syscalls.json',
  'kstrobe-network.json': import '../../../dashboards/kstrobe-network.json',
  'kstrobe-scheduler.json': import '../../../dashboards/kstrobe-scheduler.json',
  'kstrobe-block.json': import '../../../dashboards/kstrobe-block.json',
  'kstrobe-memory.json': import '../../../dashboards/kstrobe-memory.json',
  'kstrobe-files.json': import '../../../dashboards/kstrobe-files.json',
  'kstrobe-postgresql.json': import '../../../dashboards/kstrobe-postgresql.json',
  'kstrobe-agent.json': import '../../../dashboards/kstrobe-agent.json',
  'kstrobe-slo.json': import '../../../dashboards/kstrobe-slo.json',
}
