"""Runs a task of `worker.py` in one process or in several."""

import json
import pathlib
import tempfile

from tests import several


def launch(
  num_processes: int, devices: int, *, codes=(0,), timeout=300, **arguments
) -> list[str]:
  """Runs `worker.py` in several processes, with `devices` devices each.

  Asserts that every exit code is one of `codes`.

  Returns:
    The output of each process.
  """
  words = [[json.dumps(arguments)]] * num_processes
  with (
    tempfile.TemporaryDirectory() as folder,
    several.Several(
      pathlib.Path(folder), 'tests.processes.worker', words, devices=devices
    ) as run,
  ):
    found = run.codes(timeout)
    texts = [run.output(index) for index in range(num_processes)]
  for code, text in zip(found, texts, strict=True):
    assert code in codes, text[-5000:]
  return texts
