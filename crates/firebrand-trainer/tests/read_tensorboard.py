"""Prints what TensorBoard sees in a run directory, as one JSON object: scalars, histograms and hyper-parameters."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2


def hparams(accumulator: EventAccumulator) -> dict:
    """The session that the hparams plugin would show."""
    tags = accumulator.PluginTagToContent(metadata.PLUGIN_NAME)
    data = plugin_data_pb2.HParamsPluginData.FromString(tags[metadata.SESSION_START_INFO_TAG])
    session = data.session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}
    return {"values": values, "group_name": session.group_name, "start_time": session.start_time_secs}


def main() -> None:
    accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    scalars = {
        tag: [[event.step, repr(event.value), event.wall_time] for event in accumulator.Scalars(tag)]
        for tag in tags["scalars"]
    }
    histograms = {
        tag: [[e.step, e.histogram_value.num, e.histogram_value.min, e.histogram_value.max, e.histogram_value.sum]
              for e in accumulator.Histograms(tag)]
        for tag in tags["histograms"]
    }
    print(json.dumps({"scalars": scalars, "histograms": histograms, "hparams": hparams(accumulator)}))


if __name__ == "__main__":
    main()
