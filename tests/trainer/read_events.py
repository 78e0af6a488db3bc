"""Prints what TensorBoard's own reader finds in a folder of event files, as one JSON object; NaN is null."""
import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
events.Reload()
tags = events.Tags()
print(json.dumps({
    "scalars": {tag: [[e.step, None if math.isnan(e.value) else e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "texts": {tag: [[e.step, e.tensor_proto.string_val[0].decode()] for e in events.Tensors(tag)]
              for tag in tags["tensors"]},
    "histograms": {tag: [[e.step, e.histogram_value.min, e.histogram_value.max, e.histogram_value.num, e.histogram_value.bucket_limit,
                          e.histogram_value.bucket] for e in events.Histograms(tag)] for tag in tags["histograms"]},
    "plugins": {tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in tags["tensors"]},
}))
