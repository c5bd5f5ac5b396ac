"""The command of a run, and where it leaves its files."""

import dataclasses
import os
import pathlib
import sys

from etils import epath

from vit_jax.sweep.spec import OF_RUN, OF_SWEEP, Run, Value


@dataclasses.dataclass(frozen=True)
class Folders:
  """Where a sweep keeps its files.

  Attributes:
    local: on this machine: what the launcher knows, logs, the table.
    shared: where the runs work, which all their machines must see; may be
      `gs://...`.
  """

  local: pathlib.Path
  shared: epath.Path

  def workdir(self, name: str) -> epath.Path:
    return self.shared / 'runs' / name

  def log(self, name: str) -> pathlib.Path:
    return self.local / 'logs' / f'{name}.log'


def config_flags(run: Run) -> list[str]:
  """`--config` and its overrides."""
  words = [f'--config={run.config}']
  for key, value in run.overrides.items():
    words.append(f'--config.{key}={_text(value)}')
  return words


def main_flags(run: Run, folders: Folders) -> list[str]:
  """All flags of vit_jax.main."""
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
  """The command that trains and evaluates a run on this machine."""
  return [sys.executable, '-m', 'vit_jax.main', *main_flags(run, folders)]


def _path(value: str, folders: Folders) -> str:
  """The value, or the path that `run:` or `sweep:` stands for."""
  if value.startswith(OF_RUN):
    return os.fspath(folders.workdir(value.removeprefix(OF_RUN)))
  if value.startswith(OF_SWEEP):
    return os.fspath(folders.shared / value.removeprefix(OF_SWEEP))
  return value


def _text(value: Value) -> str:
  """A value as the flags of a config read it."""
  if isinstance(value, bool):
    return str(value).lower()
  return value if isinstance(value, str) else repr(value)
