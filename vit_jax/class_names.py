"""The names of a run's classes, in its directory, one a line."""

from collections.abc import Sequence

from etils import epath

from vit_jax import paths, printable

FILE = 'class_names.txt'


def write(workdir: epath.PathLike, names: Sequence[str]) -> None:
  """Writes the names, one for each logit, in their order."""
  # A name is a line, whatever a folder's name may hold.
  lines = map(printable.name, names)
  path = epath.Path(workdir) / FILE
  path.write_text(''.join(f'{line}\n' for line in lines))


def read(workdir: epath.PathLike) -> tuple[str, ...]:
  """Reads the names of a work directory; empty if it has none."""
  path = epath.Path(workdir) / FILE
  paths.check_regular(path)
  if not path.exists():
    return ()
  try:
    return tuple(path.read_text(encoding='utf-8').split('\n')[:-1])
  except UnicodeDecodeError as error:
    raise ValueError(
      f'{path} is damaged ({error}): delete it, and classes are numbers.'
    ) from error
