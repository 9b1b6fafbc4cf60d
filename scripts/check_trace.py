#!/usr/bin/env python3
"""Check a run's trace against the profile that the same run wrote.

    pip install perfetto
    rustyflow train --trace
    python scripts/check_trace.py runs/my-run/trace.pftrace runs/my-run/profile.json

The trace is read with Perfetto's own classes. It is checked that packets form one sequence, that names are interned
before they are used, that every begin on a track has its end before the next begin and no time goes back, that kernels
of a GPU lie within its passes and kernels of the CPU within the steps, and that the kernels of training have the number
and the time of the profile's.
"""

import argparse
import bisect
import collections
import dataclasses
import json
import math
import pathlib
import sys

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

# A GPU's times are rounded down to nanoseconds, start and duration each.
ROUNDING_NS = 2


@dataclasses.dataclass
class Slice:
    name: str
    start: int
    end: int
    notes: dict


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("profile", type=pathlib.Path)
    args = parser.parse_args()
    trace = Trace()
    trace.ParseFromString(args.trace.read_bytes())
    profile = json.loads(args.profile.read_text())
    tracks, instants = read(trace.packet)
    if "the trace is full" in instants:
        fail(f"the trace is incomplete ({instants}), so its sums are not those of the run")
    on_gpu = profile["device"] == "GPU"
    check_within(tracks["kernels"], tracks["passes"] if on_gpu else tracks["phases"], "pass" if on_gpu else "phase")
    check_steps(tracks["steps"])
    kernels = of_training(tracks["kernels"], tracks["phases"])
    if on_gpu:
        check_gpu(kernels, of_training(tracks["passes"], tracks["phases"]), profile)
    else:
        check_within(kernels, tracks["steps"], "step")
        check_cpu(kernels, profile)
    counts = ", ".join(f"{len(slices)} {name}" for name, slices in tracks.items())
    print(f"the trace agrees with the profile: {len(trace.packet)} packets, {counts}; {instants or 'no instants'}")


def fail(text):
    sys.exit(f"error: {text}")


def read(packets):
    """The slices of each track by its name, and the notes of each instant by its name."""
    names, tracks, slices, open_slices, instants = {}, {}, {}, {}, {}
    processes = set()
    for i, packet in enumerate(packets):
        first = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        if packet.sequence_flags != (first if i == 0 else TracePacket.SEQ_NEEDS_INCREMENTAL_STATE):
            fail(f"packet {i} has flags {packet.sequence_flags}")
        if packet.trusted_packet_sequence_id != packets[0].trusted_packet_sequence_id:
            fail(f"packet {i} is of another sequence")
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("process"):
                processes.add(track.uuid)
            elif track.parent_uuid not in processes:
                fail(f"the track {track.name} is of no process")
            else:
                tracks[track.uuid] = track.name
                slices[track.name] = []
        for name in packet.interned_data.event_names:
            if name.iid in names:
                fail(f"two names have the number {name.iid}")
            names[name.iid] = name.name
        if not packet.HasField("track_event"):
            continue
        event, at = packet.track_event, packet.timestamp
        track = tracks[event.track_uuid]
        notes = {note.name: note.uint_value for note in event.debug_annotations}
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            if track in open_slices:
                fail(f"{track}: {open_slices[track]} has not ended at {at}")
            open_slices[track] = Slice(names[event.name_iid], at, at, notes)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            ended = open_slices.pop(track)
            ended.end = at
            before = slices[track][-1].end if slices[track] else 0
            if not before <= ended.start <= ended.end:
                fail(f"{track}: {ended} begins before {before} or ends before it begins")
            slices[track].append(ended)
        elif event.type == TrackEvent.TYPE_INSTANT:
            instants[names[event.name_iid]] = notes
        else:
            fail(f"an event of type {event.type}")
    if open_slices:
        fail(f"without an end: {open_slices}")
    return slices, instants


def holder(event, outer, starts):
    """The one of `outer` in which the event begins."""
    at = bisect.bisect_right(starts, event.start) - 1
    return outer[at] if at >= 0 and event.start <= outer[at].end else None


def of_training(events, phases):
    """Those that the profile counts: a GPU computes steps in other phases too, but not in these."""
    others = [e for e in phases if e.name in ("device", "text and tokens", "model", "evaluation", "sampling")]
    starts = [e.start for e in others]
    return [e for e in events if holder(e, others, starts) is None]


def check_within(events, outer, what):
    starts = [e.start for e in outer]
    for event in events:
        held = holder(event, outer, starts)
        if held is None or event.end > held.end + ROUNDING_NS:
            fail(f"{event} is in no {what}")


def check_steps(steps):
    numbers = [e.notes["step"] for e in steps]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        fail(f"steps do not follow each other: {numbers[:10]}...")


def totals(kernels):
    by_name = collections.defaultdict(lambda: [0, 0.0])
    for kernel in kernels:
        by_name[kernel.name][0] += 1
        by_name[kernel.name][1] += (kernel.end - kernel.start) / 1e9
    return by_name


def check_names(found, profile):
    expected = {row["name"] for row in profile["kernels"]}
    if set(found) != expected:
        fail(f"the kernels {sorted(set(found) ^ expected)} are in one of trace and profile alone")


def close(left, right):
    return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)


def check_cpu(kernels, profile):
    found = totals(kernels)
    check_names(found, profile)
    for row in profile["kernels"]:
        calls, seconds = found[row["name"]]
        if calls != row["calls"] or not close(seconds, row["seconds"]):
            fail(f"{row['name']}: {calls} calls in {seconds} s, the profile has {row['calls']} in {row['seconds']}")


def check_gpu(kernels, passes, profile):
    """A GPU's kernels are those of sampled steps, and the profile has their mean; its passes are those of all steps."""
    found = totals(kernels)
    check_names(found, profile)
    for row in profile["kernels"]:
        calls, seconds = found[row["name"]]
        if calls > row["calls"] or not close(1e3 * seconds / calls, row["ms_per_call"]):
            fail(f"{row['name']}: {1e3 * seconds / calls} ms per call, the profile has {row['ms_per_call']}")
    busy = min(sum(e.end - e.start for e in passes) / 1e9, profile["training_seconds"])
    if not close(busy, profile["kernel_seconds"]):
        fail(f"passes of {busy} s, the profile has {profile['kernel_seconds']} s")


if __name__ == "__main__":
    main()
