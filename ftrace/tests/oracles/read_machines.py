"""Reads a Perfetto trace of several machines with Perfetto's own descriptors and prints each machine as a line of JSON.

Usage: read_machines.py FILE. Needs the Python packages `perfetto` and `protobuf`.

Of each machine: its name, when it began by its own clock of the whole and by the wall clock, and its events with their times.
It fails when machines share a sequence of packets or the clock of the whole is not one clock.
"""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

trace = pb.Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())

machines, owners = {}, {}
for packet in trace.packet:
    owner = owners.setdefault(packet.trusted_packet_sequence_id, packet.machine_id)
    assert owner == packet.machine_id, ("two machines on one sequence", owner, packet.machine_id)
    machine = machines.setdefault(packet.machine_id, {"id": packet.machine_id, "threads": {}, "events": []})
    if packet.HasField("system_info"):
        machine["name"] = packet.system_info.machine_name
    if packet.HasField("clock_snapshot"):
        clocks = {clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks}
        machine["boot"], machine["wall"] = clocks[pb.BUILTIN_CLOCK_BOOTTIME], clocks.get(pb.BUILTIN_CLOCK_REALTIME)
    if packet.HasField("generic_kernel_task_rename_event"):
        machine["threads"][packet.generic_kernel_task_rename_event.tid] = packet.generic_kernel_task_rename_event.comm
    for event in packet.ftrace_events.event:
        kinds = [field.name for field, _ in event.ListFields() if field.message_type]
        name = event.generic.event_name if kinds == ["generic"] else kinds[0]
        text = event.print.buf if kinds == ["print"] else None
        machine["events"].append([event.timestamp, packet.ftrace_events.cpu, event.pid, name, text])

offsets = {machine["wall"] - machine["boot"] for machine in machines.values() if machine["wall"] is not None}
assert len(offsets) == 1, ("the clock of the whole is not one", offsets)
for machine in machines.values():
    machine["events"].sort(key=lambda event: event[0])
    print(json.dumps(machine))
