"""Write runs as TensorBoard's event files: a folder for each run, with its curves, settings and result.

Only protocol buffers and the record format of the package ``tensorboard`` are used, neither torch nor TensorFlow; its
own writer of files would name them after this machine. Curves have single precision, as everywhere in TensorBoard.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.tracking.run_view import settings_of
from flbench.tracking.sink import Row, Sink, SweepView, check_disk_space

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

    from flbench.tracking.run_view import RunView


class TensorBoardSink(Sink):
    """A folder of event files.

    Raises:
        ImportError: tensorboard is not installed.
        OSError: the folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        import tensorboard  # noqa: F401  its parts are imported where they are used

        self._folder = folder
        self._running: dict[str, tuple[Path, list[Row]]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def send(self, view: RunView, rows: Sequence[Row]) -> None:
        """Write a run's settings, its curves and, once it has ended, its result.

        Evaluations of a run that this sink has begun are appended: an open TensorBoard reads no file in place of
        another.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb

        check_disk_space(self._folder)
        path, sent = self._running.pop(view.run_id, (None, []))
        summaries = []
        if path is None or sent != rows[: len(sent)]:
            path, sent = self._new_file(view.name, view.run_id), []
            summaries.append((hparams_pb(settings_of(view.config), trial_id=view.run_id), 0, 0.0))
        for row in rows[len(sent) :]:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "round"]
            summaries.append((Summary(value=values), row["round"], row.get("seconds", 0.0)))
        if view.status != "running":
            result = markdown_table(("", ""), [*view.summary.items(), ("tags", ", ".join(view.tags))])
            summaries += [(text_pb("result", result), 0, 0.0), (_session_end(failed=view.exit_code > 0), 0, 0.0)]
        _append(path, summaries)
        if view.status == "running":
            self._running[view.run_id] = path, list(rows)

    def send_sweep(self, view: SweepView) -> None:
        """Write a sweep's table as text, and its figures as images."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        check_disk_space(self._folder)
        table = text_pb("leaderboard", markdown_table(view.columns, view.rows))
        path = self._new_file(view.sweep, view.run_id)
        _append(path, [(summary, 0, 0.0) for summary in (table, *map(_image, view.figures))])

    def _new_file(self, name: str, run_id: str) -> Path:
        """Return the path of the file of a new folder, in place of an earlier one."""
        for earlier in self._folder.glob(f"*-{run_id}"):
            shutil.rmtree(earlier)
        readable = re.sub(r"[^\w.=+,()-]+", "_", name, flags=re.ASCII)  # a file system counts bytes
        folder = self._folder / f"{readable}-{run_id}"
        folder.mkdir()
        return folder / f"events.out.tfevents.{time.time():.0f}.flbench"


def _append(path: Path, summaries: Iterable[tuple[Summary, int, float]]) -> None:
    """Append summaries to a file, each with its step and the seconds since the start of the run."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    start = float(path.name.split(".")[3])
    events = [Event(wall_time=start + at, step=step, summary=summary) for summary, step, at in summaries]
    if not path.exists():
        events.insert(0, Event(wall_time=start, file_version="brain.Event:2"))
    with path.open("ab") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


def _image(path: Path) -> Summary:
    """Return a PNG file as an image."""
    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    with Image.open(path) as image:
        width, height = image.size
    content = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=path.read_bytes())
    return Summary(value=[Summary.Value(tag=f"figures/{path.stem}", image=content)])


def _session_end(*, failed: bool) -> Summary:
    """Return how a run ended, for the table of settings and results."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
    info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=info))
    value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    r"""Return a table in Markdown.

    >>> print(markdown_table(("norm", "mean"), [("a|b", 0.5), ("ln", None)]))
    | norm | mean |
    | --- | --- |
    | a\|b | 0.5 |
    | ln |  |
    """
    cells = [["" if cell is None else str(cell) for cell in line] for line in (columns, ["---"] * len(columns), *rows)]
    lines = [" | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in line) for line in cells]
    return "\n".join(f"| {line} |" for line in lines)
