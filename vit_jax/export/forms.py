"""The forms in which a model can be written.

Each is a module with

  PATH: the file or folder that is written, within the folder of the export.
  TOLERANCE: how much a logit may differ from the checkpoint's, as a part of the
    largest logit, or of 1 if that is smaller.
  check(program): raises ValueError if a program cannot be written.
  write(program, folder): writes it, and returns what a reader must know.
  logits(folder, images): runs what was written on uint8 images [B, height,
    width, channels]; returns float32 [B, K].
"""

from collections.abc import Mapping, Sequence
from types import ModuleType

from etils import epath

from vit_jax.export import (
  description,
  huggingface_folder,
  onnx_file,
  stablehlo,
  timm_folder,
)
from vit_jax.export.program import Program
from vit_jax.interop import weight_files
from vit_jax.runtime import printable

FORMS = {
  'stablehlo': stablehlo,
  'onnx': onnx_file,
  'huggingface': huggingface_folder,
  'timm': timm_folder,
}


def choose(names: Sequence[str]) -> dict[str, ModuleType]:
  """Returns the forms of these names; ValueError if one is unknown."""
  if not names or not FORMS.keys() >= set(names):
    raise ValueError(
      f'--forms={",".join(names)}: choose forms from {list(FORMS)}.'
    )
  return {name: FORMS[name] for name in dict.fromkeys(names)}


def check_target(to: epath.Path, overwrite: bool) -> None:
  """Raises ValueError if something else is there already."""
  is_export = (to / description.FILE).exists()
  weight_files.check_target(to, overwrite, 'export', is_export)


def write(
  program: Program, to: epath.Path, chosen: Mapping[str, ModuleType]
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
  for form in FORMS.values():
    path = to / form.PATH
    if path.is_dir():
      path.rmtree()
    path.unlink(missing_ok=True)
  for name, form in chosen.items():
    content['forms'][name] = form.write(program, to)
    content['files'] += description.files(to, name, form.PATH)
  weight_files.write_json(to / description.FILE, content)
  print(
    printable.text(
      f'Wrote {to} ({", ".join(chosen)}): {program.loaded.name} of'
      f' {program.loaded.origin}.'
    )
  )
