"""What the authors published with the code and weights, next to the paper.

The numbers are from the README and from issue 62 of
github.com/google-research/vision_transformer, in percent.
"""

from vit_jax.paper.numbers.values import Value, read_table

_README = 'README of github.com/google-research/vision_transformer'
RELEASED = read_table(
  'released',
  'Accuracies of released ImageNet-21k weights, fine-tuned at 384 px',
  _README,
  (
    *('CIFAR-10, dropout 0.0', 'CIFAR-10, dropout 0.1'),
    *('CIFAR-100, dropout 0.0', 'CIFAR-100, dropout 0.1'),
    *('ImageNet, dropout 0.0', 'ImageNet, dropout 0.1'),
  ),
  """
  R50+ViT-B/16  98.72  98.94  90.88  92.30  83.72  85.08
  ViT-B/16      99.02  98.76  92.06  91.92  84.53  84.12
  ViT-B/32      98.88  98.75  92.31  92.05  81.66  81.31
  ViT-L/16      99.13  99.14  92.91  93.22  84.47  85.05
  ViT-L/32      99.06  99.09  93.29  93.34  81.89  81.13
  """,
)
# (data set, steps) -> accuracy of ViT-B/16 after a short fine-tuning.
SHORT_FINETUNING = {
  ('CIFAR-10', 500): Value(98.59, note=_README),
  ('CIFAR-10', 1000): Value(98.86, note=_README),
  ('CIFAR-100', 500): Value(89.17, note=_README),
  ('CIFAR-100', 1000): Value(91.15, note=_README),
}
# Model -> accuracy on ImageNet, fine-tuned at 224 px.
RELEASED_224 = {
  'ViT-B/16': Value(81.2, note=_README),
  'ViT-L/16': Value(82.7, note=_README),
}
_ISSUE = 'github.com/google-research/vision_transformer, issue 62'
# Model -> precision at 1 on held-out ImageNet-21k, at the end of pre-training.
UPSTREAM = {
  'ViT-B/16': Value(47.88, note=_ISSUE),
  'ViT-B/32': Value(44.04, note=_ISSUE),
  'ViT-L/16': Value(49.90, note=_ISSUE),
  'ViT-L/32': Value(45.42, note=_ISSUE),
  'ViT-H/14': Value(49.06, note=_ISSUE),
}
# (model, epochs) -> accuracy on ImageNet at 224 px, at the end of training from
# scratch at that size; Table 5 has the accuracy after fine-tuning at 384 px.
FROM_SCRATCH = {
  ('ViT-B/32', 300): Value(69.19, note=_ISSUE),
  ('ViT-B/16', 300): Value(74.79, note=_ISSUE),
  ('ViT-L/32', 90): Value(66.90, note=_ISSUE),
  ('ViT-L/16', 90): Value(72.59, note=_ISSUE),
}
