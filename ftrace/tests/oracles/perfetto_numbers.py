"""Prints numbers and types of ftrace events and their fields, as Perfetto's own descriptors have them.

Usage: perfetto_numbers.py EVENT... Needs the Python packages `perfetto` and `protobuf`.
"""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

# As `descriptor.proto` numbers types.
TYPES = {3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 13: "uint32"}

events = pb.FtraceEvent.DESCRIPTOR.fields_by_name
print(json.dumps({
    name: {
        "number": events[name].number,
        "fields": {field.name: [field.number, TYPES.get(field.type)] for field in events[name].message_type.fields},
    }
    for name in sys.argv[1:]
}))
