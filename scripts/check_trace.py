#!/usr/bin/env python3
"""Check a run's trace against the profile that the same run reports.

    rustyflow train --trace --json > lines.jsonl
    python scripts/check_trace.py runs/my-run/trace.json lines.jsonl

The last line of `train --json` has the profile. Of the trace it is checked that it is Chrome's format (each process and
thread has a name, times are not negative), that nothing on a row overlaps, that kernels of a GPU lie within its passes
and kernels of the CPU within the steps, and that the kernels of training have the number and the time of the profile's.
"""

import argparse
import bisect
import collections
import json
import math
import pathlib
import sys

# Times are rounded down to nanoseconds, start and duration each; here in microseconds.
ROUNDING = 0.0025


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("profile", type=pathlib.Path)
    args = parser.parse_args()
    trace = json.loads(args.trace.read_text())
    end = json.loads(args.profile.read_text().splitlines()[-1])
    if end.get("kind") != "end":
        fail(f"{args.profile}: its last line is not the end of a run")
    rows = tracks(trace["traceEvents"])
    for name, events in rows.items():
        check_row(name, events)
    on_gpu = end["profile"]["device"] == "GPU"
    check_within(rows["kernels"], rows["passes"] if on_gpu else rows["phases"], "pass" if on_gpu else "phase")
    check_steps(rows["steps"])
    kernels = of_training(rows["kernels"], rows["phases"])
    if on_gpu:
        check_gpu(kernels, of_training(rows["passes"], rows["phases"]), end["profile"])
    else:
        check_within(kernels, rows["steps"], "step")
        check_cpu(kernels, end["profile"])
    counts = ", ".join(f"{len(events)} {name}" for name, events in rows.items())
    print(f"the trace agrees with the profile: {counts}; clock error {trace['otherData'].get('gpu_clock_error_us')} us")


def fail(text):
    sys.exit(f"error: {text}")


def tracks(events):
    """The complete events of each row by its name."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    rows = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "i":
            fail(f"the trace is incomplete ({event['name']}), so its sums are not those of the run")
        if event["ph"] == "X":
            if event["ts"] < 0 or event["dur"] < 0:
                fail(f"a negative time: {event}")
            rows[names[event["pid"], event["tid"]]].append(event)
    return rows


def end_of(event):
    return event["ts"] + event["dur"]


def check_row(name, events):
    for before, after in zip(events, events[1:]):
        if after["ts"] < end_of(before) - ROUNDING:
            fail(f"{name}: {after} begins before the end of {before}")


def holder(event, outer, starts):
    """The one of `outer` in which the event begins."""
    at = bisect.bisect_right(starts, event["ts"] + ROUNDING) - 1
    return outer[at] if at >= 0 and event["ts"] <= end_of(outer[at]) + ROUNDING else None


def of_training(events, phases):
    """Those that the profile counts: a GPU computes steps in other phases too, but not in these."""
    others = [e for e in phases if e["name"] in ("device", "text and tokens", "model", "evaluation", "sampling")]
    starts = [e["ts"] for e in others]
    return [e for e in events if holder(e, others, starts) is None]


def check_within(events, outer, what):
    starts = [e["ts"] for e in outer]
    for event in events:
        held = holder(event, outer, starts)
        if held is None or end_of(event) > end_of(held) + ROUNDING:
            fail(f"{event} is in no {what}")


def check_steps(steps):
    numbers = [e["args"]["step"] for e in steps]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        fail(f"steps do not follow each other: {numbers[:10]}...")


def totals(kernels):
    by_name = collections.defaultdict(lambda: [0, 0.0])
    for kernel in kernels:
        by_name[kernel["name"]][0] += 1
        by_name[kernel["name"]][1] += kernel["dur"] / 1e6
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
    busy = min(sum(e["dur"] for e in passes) / 1e6, profile["training_seconds"])
    if not close(busy, profile["kernel_seconds"]):
        fail(f"passes of {busy} s, the profile has {profile['kernel_seconds']} s")


if __name__ == "__main__":
    main()
