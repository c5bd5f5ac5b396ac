"""Writes the files of a run, without running it."""

import json
import pathlib
from collections.abc import Iterable, Mapping

import ml_collections

from vit_jax import config as config_lib


def leave(
  workdir: pathlib.Path,
  *rows: Mapping,
  config: ml_collections.ConfigDict | Mapping | None = None,
  done: int | None = None,
) -> pathlib.Path:
  """Writes metrics.jsonl and, if they are given, config.json and DONE.

  Args:
    workdir: the work directory, which may be missing.
    *rows: the metrics.
    config: a dictionary is written as it is.
    done: the last step.

  Returns:
    The work directory.
  """
  workdir.mkdir(parents=True, exist_ok=True)
  if isinstance(config, ml_collections.ConfigDict):
    config_lib.save(config, workdir)
  elif config is not None:
    (workdir / 'config.json').write_text(json.dumps(config))
  (workdir / 'metrics.jsonl').write_text(lines(rows))
  if done is not None:
    (workdir / 'DONE').write_text(f'{done}\n')
  return workdir


def lines(rows: Iterable[Mapping]) -> str:
  """Returns the text of metrics.jsonl."""
  return ''.join(json.dumps(row) + '\n' for row in rows)
