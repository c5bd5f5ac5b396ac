"""Plots masked patch predictions: `python -m vit_jax.masked_patch DIR`.

    python -m vit_jax.masked_patch runs/b16_masked --plot=predicted.png

DIR is the work directory of a run of `configs/masked_patch.py`. The images come
from the run's evaluation of masked patches, or else from its training split.
Each row shows an image three times: as the model sees it, with masked patches
grey and replaced patches with the pixels of their replacement; with the
predictions in its corrupted patches; and unchanged.
"""

from collections.abc import Sequence

from absl import flags

from vit_jax.inspection import masked_patches
from vit_jax.pages import drawing
from vit_jax.runtime import command_line

_PLOT = flags.DEFINE_string(
  'plot', None, 'File for the picture: .png, .pdf or .svg.'
)
_IMAGES = flags.DEFINE_integer(
  'images', 8, 'How many images to show.', lower_bound=1
)


def main(folders: Sequence[str]) -> None:
  """Writes the picture of one run."""
  if len(folders) > 1:
    raise ValueError(f'{folders} are several runs; expected one DIR.')
  drawing.check_matplotlib()
  *pictures, _ = masked_patches.predict_pictures(folders[0], _IMAGES.value)
  masked_patches.draw(*pictures).savefig(_PLOT.value, dpi=150)
  print(f'Wrote {_PLOT.value}.')


if __name__ == '__main__':
  command_line.run(
    main, required=['plot'], arguments='DIR of a run, such as runs/b16_masked'
  )
