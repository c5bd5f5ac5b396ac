"""Small files in the released layout, and photographs in folders."""

import pathlib
import subprocess

import cv2
import numpy as np

from tests import run_files
from tests.interop import tiny
from vit_jax.interop import arrays, families
from vit_jax.paper.released import eval_only

FINE_TUNED = 'imagenet21k+imagenet2012/'


def write_weights(path, model, size, **replaced):
  """Writes a file of a model with random numbers.

  Args:
    path: of the file.
    model: see `models.build`.
    size: (height, width) of its images in pixels.
    **replaced: arrays of the head to replace, `kernel` or `bias`.
  """
  params = tiny.params(model, size)
  params['head'] |= replaced
  path.parent.mkdir(parents=True, exist_ok=True)
  arrays.write_npz(path, families.to_released(tiny.flat(params)))


def write_photographs(folder, counts):
  """Writes `FOLDER/CLASS/N.png` of 12x10 px; counts: class -> number."""
  rng = np.random.default_rng(0)
  for name, count in counts.items():
    (folder / name).mkdir(parents=True)
    for index in range(count):
      image = rng.integers(0, 256, (10, 12, 3), np.uint8)
      cv2.imwrite(str(folder / name / f'{index}.png'), image)
  return f'classes:{folder}'


def evaluator(monkeypatch, row, error):
  """Replaces the process of an evaluation by one that writes its results.

  Args:
    monkeypatch: the fixture.
    row: the flags, and the number of calls so far -> the metrics.
    error: the flags -> what it says if it fails, or ''.

  Returns:
    The list of the flags of each call, to which calls are added.
  """
  calls = []

  def run(words, *, stdout, **_):
    calls.append(dict(word.partition('=')[::2] for word in words))
    if said := error(calls[-1]):
      stdout.write(f'Loading\nerror: {said}\nSee --help.\n'.encode())
      return subprocess.CompletedProcess(words, 1)
    run_files.leave(
      pathlib.Path(calls[-1]['--workdir']),
      {'step': 0} | row(calls[-1], len(calls)),
      **dict(config={'total_steps': 0}, done=0),
    )
    return subprocess.CompletedProcess(words, 0)

  monkeypatch.setattr(eval_only.subprocess, 'run', run)
  return calls
