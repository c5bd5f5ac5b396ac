"""What the paper's models cost: as printed, and as derived from their sizes.

The exaFLOPs that Table 6 prints are the multiply-adds of a forward pass at 224
px, times 2 operations, times 3 for forward and backward pass, times 303 million
images and the epochs. The paper does not say so, but all rows but two agree.
"""

from vit_jax.paper.numbers.result_tables import TABLE_2, TABLE_6
from vit_jax.paper.numbers.values import Value, read_table

# Printed. ---------------------------------------------------------------------

# Column of Table 2 -> TPUv3-core-days of pre-training.
CORE_DAYS = {
  column: TABLE_2['TPUv3-core-days', column] for column in TABLE_2.columns
}
# Row of Table 6 -> exaFLOPs of pre-training.
EXAFLOPS = {row: TABLE_6[row, 'exaFLOPs'] for row in TABLE_6.rows}

# ViT-L/16 on ImageNet-21k; Table 2's core-days imply 28.75 days.
DAYS_ON_8_CORES = Value(
  30, note='approximate: "about 30 days" on 8 cores of TPUv3, Section 4.2'
)
# How many times less compute ViTs need than ResNets of the same accuracy.
COMPUTE_SAVED = (
  Value(2, note='approximate: "2 to 4 times", Section 4.4'),
  Value(4, note='approximate: "2 to 4 times", Section 4.4'),
)

# Derived. ---------------------------------------------------------------------

# Multiply-adds without the classifier; the exaFLOPs that follow from these; and
# the exaFLOPs with an 18,291-way classifier and with only those taps of the
# convolutions that fall inside the image, as a compiler's cost analysis counts.
COMPUTE = read_table(
  'compute',
  'Cost of a forward pass at 224 px and of the pre-training',
  'derived from the sizes of the models; to compare with Table 6',
  ('GMACs', 'exaFLOPs, textbook', 'exaFLOPs, inside the image'),
  """
  ViT-B/32, 7 epochs         4.41    56    56
  ViT-B/16, 7 epochs        17.56   224   224
  ViT-L/32, 7 epochs        15.38   196   196
  ViT-L/16, 7 epochs        61.55   783   784
  ViT-L/16, 14 epochs       61.55  1567  1567
  ViT-H/14, 14 epochs      167.30  4258  4259
  BiT-R50x1, 7 epochs        4.09    52    51
  BiT-R50x2, 7 epochs       16.11   205   199
  BiT-R101x1, 7 epochs       7.80    99    96
  BiT-R152x1, 7 epochs      11.51   146   141
  BiT-R152x2, 7 epochs      45.81   583   559
  BiT-R152x2, 14 epochs     45.81  1166  1119
  BiT-R200x3, 14 epochs    134.34  3419  3291
  R50+ViT-B/32, 7 epochs     8.46   108   106
  R50+ViT-B/16, 7 epochs    21.54   274   273
  R50+ViT-L/32, 7 epochs    19.41   247   245
  R50+ViT-L/16, 7 epochs    65.54   834   833
  R50+ViT-L/16, 14 epochs   65.54  1668  1666
  """,
)
# Figure 13's axial ViTs: 12 pairs of a row block and a column block, 7 epochs.
AXIAL_COMPUTE = read_table(
  'axial_compute',
  'Cost of axial models: a forward pass at 224 px, and the pre-training',
  'derived from the sizes of the models; to compare with Figure 13',
  ('GMACs', 'exaFLOPs'),
  """
  Axial-ViT-B/32   8.45  108
  Axial-ViT-B/16  33.5   426
  """,
)
# GMACs of a forward pass at 384 px.
FINETUNING_GMACS = {
  'ViT-B/32': Value(13.0, note='derived'),
  'ViT-B/16': Value(55.5, note='derived'),
  'ViT-L/32': Value(45.3, note='derived'),
  'ViT-L/16': Value(191, note='derived'),
  'ViT-H/14': Value(503, note='derived'),
}
# Column of Table 2 -> TFLOP/s of a TPUv3 core, from the exaFLOPs and core-days.
TFLOPS_PER_CORE = {
  'ViT-H/14, JFT-300M': Value(19.7, note='derived from Tables 2 and 6'),
  'ViT-L/16, JFT-300M': Value(26.7, note='derived from Tables 2 and 6'),
  'ViT-L/16, ImageNet-21k': Value(
    23.8, note='derived from Table 2, if these are 90 epochs and not 30'
  ),
}
# Patches per side -> mean attention distance, in pixels at 224 px, of a head
# with uniform attention: a bound for Figures 7 and 11.
UNIFORM_ATTENTION_DISTANCE = {
  14: Value(116.5, note='derived'),
  7: Value(115.5, note='derived'),
}
