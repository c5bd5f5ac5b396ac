"""Table 5: accuracy by model, pre-training data and task (Appendix C)."""

from vit_jax.paper.claims import Measure, tuned
from vit_jax.paper.item import of_paper
from vit_jax.paper.numbers import IMAGENET, REAL, printed
from vit_jax.paper.runs import pretraining

PAPER = printed('table5')
# Row -> (pre-training data, task).
ROWS = {row: (*row.split(': '),) for row in PAPER.rows}
# Our number of images differs from that in the paper's text.
IMAGES_21K = (
  'We count 12.4 million images as one epoch of ImageNet-21k. The authors of'
  ' the paper give this number for their copy without duplicates. So 90 epochs'
  " are 272,460 steps. The paper's text gives 14 million images. Then, 90"
  ' epochs would be 308,000 steps.'
)
SEEN = (
  'The learning rate of fine-tuning is chosen on validation images, which are'
  ' a part of the training images. A model that was pre-trained on ImageNet has'
  ' already seen these images of ImageNet.'
)
REAL_IN_MINIATURE = (
  "ImageNet ReaL has other labels for ImageNet's images; the miniature has no"
  ' stand-in for it.'
)


def measured(task: str, resolution: int = 384) -> Measure:
  """Returns what a table reports on a model under the name of a data set.

  Args:
    task: a data set; or ImageNet ReaL, another test of the model for ImageNet.
    resolution: of fine-tuning, in pixels.
  """
  if task == REAL:
    return tuned(IMAGENET, resolution=resolution, metric='real/accuracy')
  return tuned(task, resolution=resolution)


ITEM = of_paper(
  PAPER,
  {
    (row, model): measured(task)(pretraining(model, data))
    for row, (data, task) in ROWS.items()
    for model in PAPER.columns
    if PAPER[row, model]
  },
  notes=lambda results: [SEEN, IMAGES_21K] if results.comparable else [],
  miniature=[REAL_IN_MINIATURE],
)
