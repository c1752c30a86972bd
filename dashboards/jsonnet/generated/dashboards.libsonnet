// Made by `cargo xtask mixin`; do not edit.
{
  'kstrobe-fleet.json': import '../../grafana/kstrobe-fleet.json',
  'kstrobe-node.json': import '../../grafana/kstrobe-node.json',
  'kstrobe-syscalls.json': import '../../grafana/kstrobe-syscalls.json',
  'kstrobe-network.json': import '../../grafana/kstrobe-network.json',
  'kstrobe-scheduler.json': import '../../grafana/kstrobe-scheduler.json',
  'kstrobe-interrupts.json': import '../../grafana/kstrobe-interrupts.json',
  'kstrobe-block.json': import '../../grafana/kstrobe-block.json',
  'kstrobe-memory.json': import '../../grafana/kstrobe-memory.json',
  'kstrobe-filesystem.json': import '../../grafana/kstrobe-filesystem.json',
  'kstrobe-userspace.json': import '../../grafana/kstrobe-userspace.json',
  'kstrobe-virtualisation.json': import '../../grafana/kstrobe-virtualisation.json',
  'kstrobe-cgroups.json': import '../../grafana/kstrobe-cgroups.json',
  'kstrobe-agent.json': import '../../grafana/kstrobe-agent.json',
  'kstrobe-slo.json': import '../../grafana/kstrobe-slo.json',
}
