"""Table 5: accuracy by model, pre-training data and task (Appendix C)."""

from vit_jax.paper.claims import Measure, tuned
from vit_jax.paper.item import printed
from vit_jax.paper.numbers import IMAGENET, REAL, read_table
from vit_jax.paper.runs import pretraining

PAPER = read_table(
  'table5',
  'Accuracies by pre-training data; all at 384 px, without averaged weights',
  ('ViT-B/16', 'ViT-B/32', 'ViT-L/16', 'ViT-L/32', 'ViT-H/14'),
  """
  ImageNet: CIFAR-10                98.13  97.77  97.86  97.94      -
  ImageNet: CIFAR-100               87.13  86.31  86.35  87.07      -
  ImageNet: ImageNet                77.91  73.38  76.53  71.16      -
  ImageNet: ImageNet ReaL           83.57  79.56  82.19  77.83      -
  ImageNet: Oxford Flowers-102      89.49  85.43  89.66  86.36      -
  ImageNet: Oxford-IIIT Pets        93.81  92.04  93.64  91.35      -
  ImageNet-21k: CIFAR-10            98.95  98.79  99.16  99.13  99.27
  ImageNet-21k: CIFAR-100           91.67  91.97  93.44  93.04  93.82
  ImageNet-21k: ImageNet            83.97  81.28  85.15  80.99  85.13
  ImageNet-21k: ImageNet ReaL       88.35  86.63  88.40  85.65  88.70
  ImageNet-21k: Oxford Flowers-102  99.38  99.11  99.61  99.19  99.51
  ImageNet-21k: Oxford-IIIT Pets    94.43  93.02  94.73  93.09  94.82
  JFT-300M: CIFAR-10                99.00  98.61  99.38  99.19  99.50
  JFT-300M: CIFAR-100               91.87  90.49  94.04  92.52  94.55
  JFT-300M: ImageNet                84.15  80.73  87.12  84.37  88.04
  JFT-300M: ImageNet ReaL           88.85  86.27  89.99  88.28  90.33
  JFT-300M: Oxford Flowers-102      99.56  99.27  99.56  99.45  99.68
  JFT-300M: Oxford-IIIT Pets        95.80  93.40  97.11  95.83  97.56
  """,
)
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


ITEM = printed(
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
