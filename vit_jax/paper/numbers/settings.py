"""Tables 1, 3 and 4 of arXiv:2010.11929: models and settings.

If models share a row, its label joins our names as the paper joins its own;
`ROWS_3[i]` lists the models of `TABLE_3.rows[i]` one by one.
"""

from vit_jax.paper.numbers.values import (
  IMAGENET,
  IMAGENET21K,
  JFT,
  Value,
  read_table,
)

TABLE_1 = read_table(
  'table1',
  'Sizes of the Vision Transformers',
  'Table 1, Section 4.1',
  ('Layers', 'Hidden size', 'MLP size', 'Heads', 'Params'),
  """
  ViT-B  12   768  3072  12   86M
  ViT-L  24  1024  4096  16  307M
  ViT-H  32  1280  5120  16  632M
  """,
  printed={
    **{'ViT-B': 'ViT-Base', 'ViT-L': 'ViT-Large', 'ViT-H': 'ViT-Huge'},
    'Hidden size': 'Hidden size D',
  },
)

# (models, data set). ViT-* are the models with results in Table 5.
ROWS_3 = (
  (('ViT-B/16', 'ViT-B/32'), JFT),
  (('ViT-L/32',), JFT),
  (('ViT-L/16',), JFT),
  (('ViT-H/14',), JFT),
  (('BiT-R50x1', 'BiT-R50x2'), JFT),
  (('BiT-R101x1',), JFT),
  (('BiT-R152x1', 'BiT-R152x2'), JFT),
  (('R50+ViT-B/16', 'R50+ViT-B/32'), JFT),
  (('R50+ViT-L/32',), JFT),
  (('R50+ViT-L/16',), JFT),
  (('ViT-B/16', 'ViT-B/32'), IMAGENET21K),
  (('ViT-L/16', 'ViT-L/32'), IMAGENET21K),
  (('ViT-B/16', 'ViT-B/32', 'ViT-L/16', 'ViT-L/32'), IMAGENET),
)
# Three runs of Tables 5 and 6 are not in Table 3: BiT-R152x2 and BiT-R200x3 for
# 14 epochs, and ViT-H/14 on ImageNet-21k.
TABLE_3 = read_table(
  'table3',
  'Pre-training',
  'Table 3, Appendix B.1',
  ('Epochs', 'Base LR', 'LR decay', 'Weight decay', 'Dropout'),
  """
  ViT-B/{16,32}, JFT-300M          7  8e-4  linear   0.1  0.0
  ViT-L/32, JFT-300M               7  6e-4  linear   0.1  0.0
  ViT-L/16, JFT-300M            7/14  4e-4  linear   0.1  0.0
  ViT-H/14, JFT-300M              14  3e-4  linear   0.1  0.0
  BiT-R50x{1,2}, JFT-300M          7  1e-3  linear   0.1  0.0
  BiT-R101x1, JFT-300M             7  8e-4  linear   0.1  0.0
  BiT-R152x{1,2}, JFT-300M         7  6e-4  linear   0.1  0.0
  R50+ViT-B/{16,32}, JFT-300M      7  8e-4  linear   0.1  0.0
  R50+ViT-L/32, JFT-300M           7  2e-4  linear   0.1  0.0
  R50+ViT-L/16, JFT-300M        7/14  4e-4  linear   0.1  0.0
  ViT-B/{16,32}, ImageNet-21k     90  1e-3  linear  0.03  0.1
  ViT-L/{16,32}, ImageNet-21k  30/90  1e-3  linear  0.03  0.1
  ViT-*, ImageNet                300  3e-3  cosine   0.3  0.1
  """,
  printed={
    'BiT-R50x{1,2}, JFT-300M': 'R50x{1,2}, JFT-300M',
    'BiT-R101x1, JFT-300M': 'R101x1, JFT-300M',
    'BiT-R152x{1,2}, JFT-300M': 'R152x{1,2}, JFT-300M',
  },
  special={
    ('R50+ViT-L/32, JFT-300M', 'Base LR'): {
      'note': 'the paper prints 2e-4 here, and 6e-4 for ViT-L/32'
    }
  },
)

TABLE_4 = read_table(
  'table4',
  'Fine-tuning, with the learning rates to choose from',
  'Table 4, Appendix B.1.1',
  ('Steps', 'Base LR'),
  """
  ImageNet            20000  {0.003, 0.01, 0.03, 0.06}
  CIFAR-100           10000  {0.001, 0.003, 0.01, 0.03}
  CIFAR-10            10000  {0.001, 0.003, 0.01, 0.03}
  Oxford-IIIT Pets      500  {0.001, 0.003, 0.01, 0.03}
  Oxford Flowers-102    500  {0.001, 0.003, 0.01, 0.03}
  VTAB                 2500  0.01
  """,
  printed={
    **{'CIFAR-100': 'CIFAR100', 'CIFAR-10': 'CIFAR10'},
    'VTAB': 'VTAB (19 tasks)',
  },
  special={
    ('ImageNet', 'Base LR'): {
      'note': 'by the text of the paper, 0.06 is only for ResNets and hybrids'
    }
  },
)

# The captions of Tables 3 and 4, and the text around them. --------------------

# The settings of all rows of Table 3.
PRETRAINING = {
  'batch size': Value(4096, note='Table 3, caption'),
  'warmup steps': Value(10_000, note='Table 3, caption'),
  'image size': Value(224, note='Table 3, caption'),
  'gradient clip': Value(1, note='Table 3, caption; on ImageNet only'),
  'Adam beta1': Value(0.9, note='Section 4.1'),
  'Adam beta2': Value(0.999, note='Section 4.1'),
}
# The settings of all rows of Table 4, and what Table 2 adds on ImageNet.
FINETUNING = {
  'batch size': Value(512, note='Table 4, caption'),
  'image size': Value(384, note='Table 4, caption'),
  'gradient clip': Value(1, note='Table 4, caption'),
  'momentum': Value(0.9, note='Appendix B.1.1'),
  'weight decay': Value(0, note='Table 4, caption'),
  'image size, ViT-L/16 in Table 2': Value(512, note='Section 4.1'),
  'image size, ViT-H/14 in Table 2': Value(518, note='Section 4.1'),
  'Polyak factor in Table 2': Value(0.9999, note='Section 4.1'),
}
# The base model of Figure 8, whose dimensions are scaled one after another.
SHAPE_BASE = {
  'layers': Value(8, note='Appendix D.2'),
  'hidden size': Value(1024, note='Appendix D.2'),
  'MLP size': Value(2048, note='Appendix D.2'),
  'patch size': Value(32, note='Appendix D.2'),
}
