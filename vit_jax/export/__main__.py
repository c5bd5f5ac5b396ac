"""Exports a model: `python -m vit_jax.export --checkpoint=PATH --to=DIR`.

  --checkpoint=runs/birds --to=birds          a program that needs only JAX
  --checkpoint=runs/birds --to=birds --dtype=bfloat16
                                              the same, for speed on GPU and TPU
  --checkpoint=augreg+imagenet2012/B_16 --to=b16 --image_size=384
                                              at another resolution
  --checkpoint=runs/birds --to=birds --forms=stablehlo,onnx,huggingface,timm
                                              other forms, too
  --checkpoint=runs/birds --to=birds --check_only --images=photos
                                              compares what DIR holds, again

--checkpoint is a run's directory or one of its checkpoints, a .npz file, a
Hugging Face folder, or a name from vit_jax/interop/catalog.py. DIR gets a file
or folder for each form, and model.json, which says how images are prepared and
what the classes are:

  stablehlo    model.stablehlo: for JAX on CPUs, NVIDIA GPUs and TPUs alike
  onnx         model.onnx: for ONNX Runtime and others
  huggingface  a folder for transformers, with a model card
  timm         a folder for timm

At the end, every form classifies the same images, and a table shows how much
its logits differ from the checkpoint's. Exit code 1 if one differs too much.
"""

from absl import flags

from vit_jax import loaded
from vit_jax.export import forms, parity
from vit_jax.export.program import DTYPES, Program
from vit_jax.interop import weight_files
from vit_jax.runtime import command_line
from vit_jax.workdir import files

loaded.define_flags()
_TO = flags.DEFINE_string('to', None, 'Directory to write.')
_FORMS = flags.DEFINE_list(
  'forms', 'stablehlo', f'What to write: {", ".join(forms.FORMS)}.'
)
_DTYPE = flags.DEFINE_enum(
  'dtype',
  'float32',
  DTYPES,
  'The compute dtype; bfloat16 is only for stablehlo.',
)
_CHECK_ONLY = flags.DEFINE_bool(
  'check_only', False, 'Write nothing, and compare what --to holds.'
)
_IMAGES = flags.DEFINE_list(
  'images',
  [],
  'Image files or folders to compare on, of which 32 count; by default random'
  ' pixels.',
)
_OVERWRITE = flags.DEFINE_bool(
  'overwrite', False, 'Replace an earlier export in --to.'
)


def main() -> None:
  to = files.absolute(_TO.value)
  description = to / forms.DESCRIPTION
  options, names, dtype = loaded.arguments(), _FORMS.value, _DTYPE.value
  if _CHECK_ONLY.value:
    written = weight_files.read_json(description)
    names, dtype = written['forms'], written['dtype']
    options['image_size'] = options['image_size'] or tuple(
      written['image_size']
    )
    recorded = written['preprocessing']['text']
    options['preprocess'] = options['preprocess'] or recorded
  else:
    weight_files.check_target(
      to, _OVERWRITE.value, 'export', description.exists()
    )
  chosen = forms.choose(names)
  program = Program(loaded.load(flags.FLAGS.checkpoint, **options), dtype)
  for form in chosen.values():
    form.check(program)
  pixels = parity.images(program, 32, tuple(_IMAGES.value))
  if not _CHECK_ONLY.value:
    forms.write(program, to, chosen)
  rows = parity.compare(program, to, chosen, pixels)
  print(f'The largest difference of a logit on {len(pixels)} images:')
  print(parity.table(rows))
  if failed := [row.form for row in rows if not row.passed]:
    raise ValueError(
      f'{", ".join(failed)} in {to} does not give the logits of'
      f' {program.loaded.origin}. Do not use it.'
    )


if __name__ == '__main__':
  command_line.run(main, required=('checkpoint', 'to'))
