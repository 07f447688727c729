"""Write runs as TensorBoard's event files: a folder for each run, with its curves, settings and result.

Only protocol buffers and the record format of the package ``tensorboard`` are used, neither torch nor TensorFlow.
Curves have single precision, as everywhere in TensorBoard.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flbench.tracking.run_view import settings_of
from flbench.tracking.sink import Row, check_disk_space

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

    from flbench.tracking.run_view import RunView
    from flbench.tracking.sweep_view import SweepView


class TensorBoardSink:
    """A folder of event files.

    Raises:
        ImportError: tensorboard is not installed.
        OSError: the folder cannot be created.
    """

    url: str | None = None

    def __init__(self, folder: Path) -> None:
        import tensorboard  # noqa: F401  its parts are imported where they are used

        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, view: RunView) -> TensorBoardRun:
        """Return a new run in a folder of its own; raises SendFailed if the disk is nearly full."""
        return TensorBoardRun(self._new_folder(view.name, view.run_id), view)

    def send_sweep(self, view: SweepView) -> str:
        """Write a sweep's table as text, and its figures as images; return the name of their folder."""
        folder = self._new_folder(view.sweep, view.run_id)
        with EventFile(folder) as events:
            events.text("leaderboard", markdown_table(view.columns, view.rows))
            for path in view.figures:
                events.image(f"figures/{path.stem}", path)
        return folder.name

    def restart(self) -> None:
        """Do nothing: a run that is sent again replaces its folder."""

    def close(self) -> None:
        """Do nothing: files are closed at the end of their runs."""

    def _new_folder(self, name: str, run_id: str) -> Path:
        check_disk_space(self._folder)
        for earlier in self._folder.glob(f"*-{run_id}"):
            shutil.rmtree(earlier)
        readable = re.sub(r"[^\w.=+,()-]+", "_", name, flags=re.ASCII)  # a file system counts bytes
        folder = self._folder / f"{readable}-{run_id}"
        folder.mkdir()
        return folder


class TensorBoardRun:
    """A run that is being written."""

    def __init__(self, folder: Path, view: RunView) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._folder, self._events = folder, EventFile(folder)
        self._events.add(hparams_pb(settings_of(view.config), trial_id=view.run_id))

    def log(self, rows: Sequence[Row]) -> None:
        """Write further evaluations, in order."""
        for row in rows:
            self._events.scalars(row)

    def finish(self, view: RunView) -> str:
        """Write the run's result and close its file; return the name of its folder."""
        self._events.text("result", markdown_table(("", ""), [*view.summary.items(), ("tags", ", ".join(view.tags))]))
        self._events.end(failed=view.exit_code > 0)
        self._events.close()
        return self._folder.name

    def interrupt(self) -> None:
        """Close the file."""
        self._events.close()


class EventFile:
    """An event file; whatever is added is on its way to the disk when the call returns."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._start = time.time()
        self._file = (folder / f"events.out.tfevents.{self._start:.0f}.flbench").open("wb")
        self._writer, self._event = RecordWriter(self._file), Event
        self._write(Event(wall_time=self._start, file_version="brain.Event:2"))

    def __enter__(self) -> EventFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, summary: Summary, step: int = 0, seconds: float = 0.0) -> None:
        """Add values, ``seconds`` after the start of the file."""
        self._write(self._event(wall_time=self._start + seconds, step=step, summary=summary))

    def scalars(self, row: Row) -> None:
        """Add the numbers of an evaluation."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "round"]
        self.add(Summary(value=values), row["round"], row.get("seconds", 0.0))

    def text(self, name: str, markdown: str) -> None:
        """Add a text, which TensorBoard shows as Markdown."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self.add(text_pb(name, markdown))

    def image(self, name: str, path: Path) -> None:
        """Add a PNG file."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as image:
            width, height = image.size
        content = Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=path.read_bytes())
        self.add(Summary(value=[Summary.Value(tag=name, image=content)]))

    def end(self, *, failed: bool) -> None:
        """Add how the run ended, for the table of settings and results."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        status = api_pb2.STATUS_FAILURE if failed else api_pb2.STATUS_SUCCESS
        info = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=info))
        value = Summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
        self.add(Summary(value=[value]))

    def close(self) -> None:
        """Close the file; raises OSError if the disk is full."""
        self._file.close()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())
        self._file.flush()


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
