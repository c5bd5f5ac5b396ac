"""Looks into a model: `python -m vit_jax.inspect --checkpoint=... IMAGE...`

  --checkpoint=runs/b16 --to=figures photos         a run, and a folder
  --checkpoint=augreg/L_16 --to=figures a.jpg b.jpg a released file by its name
  --checkpoint=L_16.npz --to=figures photos --rollouts=128
                                                    all of Figure 14
  --mistakes=runs/birds --to=mistakes               a page on a run's mistakes
  --mistakes=runs/birds/predictions/test.parquet --to=mistakes
                                                    of one evaluation of several

Writes these figures, each as .png, .pdf and .csv, if the model supports them:

  rollout               images beside their attention rollout (Fig. 6, 14)
  attention_distance    how far each head looks, by depth (Fig. 7 right, 11)
  filters               principal components of the patch embedding (Fig. 7)
  position_similarity   cosines between position embeddings (Fig. 7, 10)
  patch_pca             images beside their patches' first three principal
                        components as red, green and blue (DINOv2's picture).
                        They are those of all drawn images together, so that
                        similar patches have similar colours. A larger
                        --image_size has more patches
  registers             images beside the attention of each register, in models
                        that have some: the last block, the mean of its heads

With --mistakes it writes TO/index.html instead, a page that needs no network,
from predictions that an evaluation has saved (--config.evals.NAME.
save_predictions=True): confusions, accuracy of each class, the most confident
mistakes with their images, and calibration. Its numbers are in classes.csv and
confusions.csv.

--checkpoint is a run's directory or one of its checkpoints, a .npz file, a
Hugging Face folder, or a name from vit_jax/interop/catalog.py. Subfolders of
image folders are searched, too. Exit codes: 0 all is drawn; 1 an error; 3 some
images could not be read, and the others are drawn.

The figures need matplotlib: pip install "vit-paper-jax[plot]". The page needs
pyarrow: "vit-paper-jax[parquet]".
"""

import sys
from collections.abc import Sequence

import numpy as np
from absl import flags, logging

from vit_jax import images, loaded
from vit_jax.inspection import gallery, mistakes
from vit_jax.pages import drawing
from vit_jax.runtime import command_line
from vit_jax.workdir import files

# Random images over which attention distances are averaged, as in the paper.
_NUM_IMAGES = 128

loaded.define_flags()
_TO = flags.DEFINE_string(
  'to', None, 'Directory for the figures; older ones there are replaced.'
)
_ROLLOUTS = flags.DEFINE_integer(
  'rollouts', 6, 'How many of these images are drawn.', lower_bound=1
)
_MISTAKES = flags.DEFINE_string(
  'mistakes', None, 'Run with saved predictions, or a file of them.'
)
_WORST = flags.DEFINE_integer(
  'worst',
  60,
  'How many of the most confident mistakes the page shows.',
  lower_bound=0,
)
_DATASET = flags.DEFINE_string(
  'dataset',
  '',
  "Data spec to read the page's images from, if the data set has moved.",
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed for the choice of the images.')


def main(words: Sequence[str]) -> None:
  to = files.absolute(_TO.value)
  if to.exists() and not to.is_dir():
    raise ValueError(f'--to={to} is a file, expected a directory.')
  images.check_one(words, mistakes=_MISTAKES.value)
  if _MISTAKES.value:
    options = dict(worst=_WORST.value, dataset=_DATASET.value)
    print(mistakes.write(_MISTAKES.value, to, **options), flush=True)
    return
  command_line.require('checkpoint')
  drawing.check_matplotlib()
  found = images.find(words)
  order = np.random.default_rng(_SEED.value).permutation(len(found))
  chosen = images.from_paths([found[i] for i in order[:_NUM_IMAGES]])
  looked_into = loaded.load(flags.FLAGS.checkpoint, **loaded.arguments())
  height, width = looked_into.image_size
  print(
    f'{looked_into.name} of {looked_into.origin}, {len(chosen)} of'
    f' {len(found)} images, {height}x{width} px, preprocessed with'
    f' {looked_into.preprocess.text!r}.',
    *looked_into.notes,
    sep='\n',
    flush=True,
  )
  pixels, problems = chosen.read(looked_into.preprocess)
  paths = [path for i, path in enumerate(chosen.items) if i not in problems]
  gallery.draw_all(looked_into, paths, pixels, to, _ROLLOUTS.value)
  for index, reason in problems.items():
    logging.warning('Not read: %s: %s', chosen.names[index], reason)
  if problems:
    sys.exit(command_line.UNREADABLE)


if __name__ == '__main__':
  command_line.run(
    main,
    required=('to',),
    arguments='image files and folders of them, such as photos',
    optional=True,  # The page on mistakes needs none.
  )
