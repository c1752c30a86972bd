// Made by `cargo xtask mixin`; do not edit.
{
  'kstrobe-fleet.json': import '../../grafana/kstrobe-fleet.json',
  'kstrobe-node.json': import '../../grafana/kstrobe-node.json',
  'kstrobe-syscalls.json': import '../../grafana/kstrobe-syscalls.json',
  'kstrobe-network.json': import '../../grafana/kstrobe-network.json',
  'kstrobe-scheduler.json': import '../../grafana/kstrobe-scheduler.json',
  'kstrobe-block.json': import '../../grafana/kstrobe-block.json',
  'kstrobe-memory.json': import '../../grafana/kstrobe-memory.json',
  'kstrobe-files.json': import '../../grafana/kstrobe-files.json',
  'kstrobe-postgresql.json': import '../../grafana/kstrobe-postgresql.json',
  'kstrobe-agent.json': import '../../grafana/kstrobe-agent.json',
  'kstrobe-slo.json': import '../../grafana/kstrobe-slo.json',
}
