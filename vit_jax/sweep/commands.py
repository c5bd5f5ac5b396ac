"""Defines the command of a run and the paths of its files."""

import dataclasses
import os
import pathlib
import sys

from etils import epath

from vit_jax.sweep.spec import OF_RUN, OF_SWEEP, Run


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


def config_flags(run: Run, folders: Folders | None = None) -> list[str]:
  """Returns `--config` and its overrides.

  Args:
    run: the run.
    folders: the sweep's folders, to which `run:NAME` and `sweep:PATH` refer;
      None leaves such values as they are.
  """
  words = [f'--config={run.config}']
  for key, value in run.overrides.items():
    if isinstance(value, bool):
      value = str(value).lower()
    elif not isinstance(value, str):
      value = repr(value)
    elif folders and value.startswith(OF_RUN):
      value = os.fspath(folders.workdir(value.removeprefix(OF_RUN)))
    elif folders and value.startswith(OF_SWEEP):
      value = os.fspath(folders.shared / value.removeprefix(OF_SWEEP))
    words.append(f'--config.{key}={value}')
  return words


def main_flags(run: Run, folders: Folders) -> list[str]:
  """Returns all flags of vit_jax.main for a run."""
  return [
    *config_flags(run, folders),
    f'--workdir={folders.workdir(run.name)}',
    f'--compilation_cache={folders.shared / "compilation_cache"}',
  ]


def command(run: Run, folders: Folders) -> list[str]:
  """Returns the command that trains and evaluates a run on this machine."""
  return [sys.executable, '-m', 'vit_jax.main', *main_flags(run, folders)]
