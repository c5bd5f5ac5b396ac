"""A picture of masked patch prediction: `python -m vit_jax.masked_patch DIR`.

    python -m vit_jax.masked_patch runs/b16_masked --plot=predicted.png

DIR is a run's of `configs/masked_patch.py`. A row for each image, held-out ones
if the run evaluates on any: what the model sees, masked patches grey, and where
another patch's embedding is seen, that one's pixels; the same image with its
corrupted patches as predicted; the image itself.
"""

from collections.abc import Sequence

from absl import flags

from vit_jax.masked_patch import figure
from vit_jax.runtime import command_line

_PLOT = flags.DEFINE_string(
  'plot', None, 'File for the picture: .png, .pdf or .svg.'
)
_IMAGES = flags.DEFINE_integer('images', 8, 'How many images to show.')


def main(folders: Sequence[str]) -> None:
  """Writes the picture of one run."""
  if len(folders) > 1:
    raise ValueError(f'{folders} are several runs: give one.')
  figure.of_run(folders[0], _PLOT.value, _IMAGES.value)
  print(f'Wrote {_PLOT.value}.')


if __name__ == '__main__':
  command_line.run(
    main, required=['plot'], arguments='DIR of a run, such as runs/b16_masked'
  )
