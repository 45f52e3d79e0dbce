"""Decodes a merged file with Perfetto's own published definitions (the `perfetto` package from
PyPI ships them) and checks what the format demands of it: known fields only, tracks declared before
use, balanced slices in order, interned ids that lead somewhere, flows that join at least two slices.

    perfetto_check.py FILE [EXPECTED_SLICES]      77: the package is not installed
"""
import collections
import sys

try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
except ImportError:
    print("skipped: no python package perfetto (pip install perfetto)")
    sys.exit(77)


def unknown_fields(message):
    """Fields that the definitions do not know, at any depth."""
    try:
        from google.protobuf import unknown_fields as module
        count = len(module.UnknownFieldSet(message))
    except ImportError:
        count = len(message.UnknownFields())
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        for part in value if isinstance(value, collections.abc.Iterable) else [value]:
            count += unknown_fields(part)
    return count


class Sequence:
    def __init__(self):
        self.names, self.categories, self.notes = {}, {}, {}


def check(path, expected):
    trace = pb.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    tracks, sequences = {}, {}
    stacks, last = collections.defaultdict(list), {}
    kinds, flows = collections.Counter(), collections.Counter()
    slices = counters = 0
    for at, packet in enumerate(trace.packet):
        where = "packet %d" % at
        assert unknown_fields(packet) == 0, where + " has fields that Perfetto does not know"
        key = packet.trusted_packet_sequence_id
        assert key != 0, where + " has no sequence"
        if packet.sequence_flags & pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            sequences[key] = Sequence()
        assert key in sequences, where + ": its sequence does not begin cleared"
        sequence = sequences[key]
        for table, entries in ((sequence.names, packet.interned_data.event_names),
                               (sequence.categories, packet.interned_data.event_categories),
                               (sequence.notes, packet.interned_data.debug_annotation_names)):
            for entry in entries:
                assert entry.iid not in table, where + " interns an id twice"
                table[entry.iid] = entry.name
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks, where + " declares a track twice"
            assert not track.parent_uuid or track.parent_uuid in tracks, where + ": no such parent"
            tracks[track.uuid] = track
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks, where + ": its track was not declared"
        assert packet.timestamp >= last.get(event.track_uuid, 0), where + " goes back in time"
        last[event.track_uuid] = packet.timestamp
        stack = stacks[event.track_uuid]
        if event.type == pb.TrackEvent.TYPE_SLICE_END:
            assert stack, where + " ends a slice that never began"
            stack.pop()
            continue
        for iid in event.category_iids:
            kinds[sequence.categories[iid]] += 1
        for note in event.debug_annotations:
            assert note.name_iid in sequence.notes, where + ": annotation without a name"
        if event.type == pb.TrackEvent.TYPE_COUNTER:
            assert tracks[event.track_uuid].HasField("counter"), where + ": not a counter track"
            counters += 1
            continue
        assert event.name or sequence.names.get(event.name_iid), where + " has no name"
        if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
            stack.append(at)
            slices += 1
            flows.update(event.flow_ids)
    assert not any(stacks.values()), "slices that never end"
    processes = [t.process.process_name for t in tracks.values() if t.HasField("process")]
    assert processes, "no ranks"
    assert slices > 0, "no slices"
    assert flows and min(flows.values()) >= 2, "a flow that joins nothing"
    if expected is not None:
        assert slices == expected, "%d slices, expected %d" % (slices, expected)
    print("%s: %d packets, %d ranks (%s, ...), %d tracks, %d slices, %d counter values, %d flows" % (
        path, len(trace.packet), len(processes), processes[0], len(tracks), slices, counters,
        len(flows)))
    print("  " + "  ".join("%s %d" % pair for pair in sorted(kinds.items())))


check(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
