"""Flags of the commands that open a data spec.

A command makes them its own with `flags.adopt_module_key_flags(source_flags)`.
"""

from typing import Any

from absl import flags

DATA_DIR = flags.DEFINE_string(
  'data_dir',
  '',
  "Folder of the prepared TFDS data ('': TFDS's default); for shapes, folder in"
  " which to keep rendered scenes ('': none are kept).",
)
IMAGE_KEY = flags.DEFINE_string(
  'image_key', 'image', 'Feature or column that holds the image.'
)
LABEL_KEY = flags.DEFINE_string(
  'label_key', 'label', 'Feature or column that holds the label.'
)
NUM_CLASSES = flags.DEFINE_integer(
  'num_classes', 0, 'Number of classes of labels without names.', lower_bound=0
)


def arguments() -> dict[str, Any]:
  """Returns the flags' values as keyword arguments of `data.open_source`."""
  return dict(
    data_dir=DATA_DIR.value,
    image_key=IMAGE_KEY.value,
    label_key=LABEL_KEY.value,
    num_classes=NUM_CLASSES.value,
  )
