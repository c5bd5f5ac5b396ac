"""Writes the forms of a model, and judges what was written."""

from collections.abc import Mapping, Sequence

from etils import epath

from vit_jax.export import description, forms, parity
from vit_jax.export.program import Program
from vit_jax.interop import weight_files
from vit_jax.runtime import printable


def judge(rows: Sequence[parity.Row], program: Program, to: epath.Path) -> None:
  """Raises ValueError if a form differs too much."""
  if failed := [row.form for row in rows if not row.passed]:
    raise ValueError(
      f'{", ".join(failed)} in {to} does not give the logits of'
      f' {program.subject.origin}. Do not use it.'
    )


def check_target(to: epath.Path, overwrite: bool) -> None:
  """Raises ValueError if something else is there already."""
  if not to.exists() or (to.is_dir() and not any(to.iterdir())):
    return
  if not (to / description.FILE).exists():
    raise ValueError(
      f'{to} exists and is no export: it has no {description.FILE}. Choose'
      ' another --to.'
    )
  if not overwrite:
    raise ValueError(f'{to} holds an export; --overwrite replaces it.')


def write(
  program: Program, to: epath.Path, chosen: Mapping[str, forms.Form]
) -> None:
  """Writes forms of a program, and their description as the last file.

  Args:
    program: the model.
    to: the directory; created if it does not exist. Its earlier export is
      removed.
    chosen: the forms, by name.
  """
  to.mkdir(parents=True, exist_ok=True)
  (to / description.FILE).unlink(missing_ok=True)
  content = description.describe(program) | {'forms': {}, 'files': []}
  for form in forms.FORMS.values():
    _remove(to / form.path)
  for name, form in chosen.items():
    content['forms'][name] = form.write(program, to)
    content['files'] += description.files(to, name, form.path)
  weight_files.write_json(to / description.FILE, content)
  print(
    printable.text(
      f'Wrote {to} ({", ".join(chosen)}): {program.subject.name} of'
      f' {program.subject.origin}.'
    )
  )


def _remove(path: epath.Path) -> None:
  if path.is_dir():
    path.rmtree()
  else:
    path.unlink(missing_ok=True)
