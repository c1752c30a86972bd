"""Reads a Perfetto trace with Perfetto's own descriptors and prints what it says, one JSON object a line.

Usage: read_perfetto.py FILE. Needs the Python packages `perfetto` and `protobuf`.
"""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

NAMES = {"funcgraph_entry", "funcgraph_exit"}


def say(what, **more):
    print(json.dumps({"what": what, **more}))


def assert_known(message):
    """Nothing has a number or a type that Perfetto does not know."""
    assert not len(UnknownFieldSet(message)), (message.DESCRIPTOR.name, [field.field_number for field in UnknownFieldSet(message)])
    for field, value in message.ListFields():
        if field.message_type:
            for part in value if field.is_repeated else [value]:
                assert_known(part)


def whole(packet):
    """What is said of the whole trace."""
    if packet.HasField("system_info"):
        info = packet.system_info
        say("system", sysname=info.utsname.sysname, release=info.utsname.release, version=info.utsname.version,
            machine=info.utsname.machine, host=info.machine_name, cpus=info.num_cpus)
    if packet.HasField("clock_snapshot"):
        snapshot = packet.clock_snapshot
        name = pb.BuiltinClock.Name
        say("clocks", primary=name(snapshot.primary_trace_clock),
            clocks={name(clock.clock_id): clock.timestamp for clock in snapshot.clocks})
    for process in packet.process_tree.processes:
        say("process", pid=process.pid, name="".join(process.cmdline))
    for thread in packet.process_tree.threads:
        say("thread", tid=thread.tid, tgid=thread.tgid, name=thread.name)
    if packet.HasField("generic_kernel_task_rename_event"):
        event = packet.generic_kernel_task_rename_event
        say("thread", tid=event.tid, tgid=None, name=event.comm)
    for cpu in packet.ftrace_stats.cpu_stats:
        say("stats", cpu=cpu.cpu, entries=cpu.entries, overrun=cpu.overrun, dropped=cpu.dropped_events, read=cpu.read_events)


def generic(message):
    values = {field.name: getattr(field, field.WhichOneof("value")) for field in message.field}
    return message.event_name, values


def typed_fields(message):
    """All fields that are there, zeros too."""
    known = message.DESCRIPTOR.fields_by_name
    lists = {name: list(getattr(message, name)) for name, field in known.items() if field.is_repeated}
    return lists | {name: getattr(message, name) for name in known if name not in lists and message.HasField(name)}


def main():
    trace = pb.Trace()
    with open(sys.argv[1], "rb") as file:
        trace.ParseFromString(file.read())
    assert_known(trace)
    symbols, calls = {}, []
    for number, packet in enumerate(trace.packet):
        sequence = packet.trusted_packet_sequence_id
        whole(packet)
        if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            symbols[sequence] = {}
        for symbol in packet.interned_data.kernel_symbols:
            assert symbol.iid and symbol.iid not in symbols[sequence], (number, symbol)
            symbols[sequence][symbol.iid] = symbol.str.decode()
        if not packet.HasField("ftrace_events"):
            continue
        assert packet.sequence_flags & pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE, number
        bundle = packet.ftrace_events
        assert bundle.HasField("cpu"), number
        for at, event in enumerate(bundle.event):
            kinds = [field.name for field, _ in event.ListFields() if field.message_type]
            assert len(kinds) == 1 and event.HasField("pid") and event.HasField("timestamp"), (number, at)
            name, message = kinds[0], getattr(event, kinds[0])
            typed = name != "generic"
            if typed:
                values = typed_fields(message)
                absent = [field for field in message.DESCRIPTOR.fields_by_name if field not in values]
                if name in NAMES:
                    values["func"] = symbols[sequence][message.func]
                    calls.append((event.timestamp, bundle.cpu, len(calls), event.pid, name, values))
            else:
                absent = []
                name, values = generic(message)
            say("event", cpu=bundle.cpu, time=event.timestamp, pid=event.pid, flags=event.common_flags, typed=typed, name=name,
                lost=bundle.lost_events and at == 0, clock=pb.FtraceClock.Name(bundle.ftrace_clock), fields=values, absent=absent)
    slices(calls)


def slices(calls):
    """Calls as Perfetto's importer nests them: a track for each thread, for idle CPUs one each."""
    tracks = {}
    for time, cpu, _, pid, name, values in sorted(calls, key=lambda call: call[:3]):
        open_calls = tracks.setdefault((pid, cpu if pid == 0 else None), [])
        if name == "funcgraph_entry":
            open_calls.append((time, values["depth"], values["func"]))
            continue
        # An exit ends the innermost call of its name, and all that is open inside.
        matching = [at for at, call in enumerate(open_calls) if call[2] == values["func"] and call[1] == values["depth"]]
        entry = open_calls[matching[-1]] if matching else None
        inside = len(open_calls) - matching[-1] - 1 if matching else 0
        if matching:
            del open_calls[matching[-1]:]
        say("slice", cpu=cpu, pid=pid, name=values["func"], depth=values["depth"], entry=entry and entry[0], exit=time,
            ns=values["rettime"] - values["calltime"], parents=[call[2] for call in open_calls], unfinished_inside=inside)


main()
