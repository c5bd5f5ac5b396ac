"""Defines the command of a run and the paths of its files."""

import dataclasses
import os
import pathlib
import sys

from etils import epath

from vit_jax.sweep.spec import OF_RUN, OF_SWEEP, Run, Value


@dataclasses.dataclass(frozen=True)
class Folders:
  """The folders of a sweep's files.

  Attributes:
    local: folder on this machine for the launcher's state, logs and the table.
    shared: folder of the runs' work directories, which all machines of the runs
      must see; may be `gs://...`.
  """

  local: pathlib.Path
  shared: epath.Path

  def workdir(self, name: str) -> epath.Path:
    return self.shared / 'runs' / name

  def log(self, name: str) -> pathlib.Path:
    return self.local / 'logs' / f'{name}.log'


def config_flags(run: Run) -> list[str]:
  """Returns `--config` and its overrides."""
  words = [f'--config={run.config}']
  for key, value in run.overrides.items():
    words.append(f'--config.{key}={_text(value)}')
  return words


def main_flags(run: Run, folders: Folders) -> list[str]:
  """Returns all flags of vit_jax.main for a run."""
  overrides = {
    key: _path(value, folders) if isinstance(value, str) else value
    for key, value in run.overrides.items()
  }
  return [
    *config_flags(dataclasses.replace(run, overrides=overrides)),
    f'--workdir={folders.workdir(run.name)}',
    f'--compilation_cache={folders.shared / "compilation_cache"}',
  ]


def command(run: Run, folders: Folders) -> list[str]:
  """Returns the command that trains and evaluates a run on this machine."""
  return [sys.executable, '-m', 'vit_jax.main', *main_flags(run, folders)]


def _path(value: str, folders: Folders) -> str:
  """Returns the value, with `run:NAME` and `sweep:PATH` replaced by a path."""
  if value.startswith(OF_RUN):
    return os.fspath(folders.workdir(value.removeprefix(OF_RUN)))
  if value.startswith(OF_SWEEP):
    return os.fspath(folders.shared / value.removeprefix(OF_SWEEP))
  return value


def _text(value: Value) -> str:
  """Returns a value as text that the flags of a config can parse."""
  if isinstance(value, bool):
    return str(value).lower()
  return value if isinstance(value, str) else repr(value)
