"""`vtab:TASK`: the images and labels of a task of VTAB-1k, from TFDS data."""

import dataclasses

import tensorflow_datasets as tfds

from vit_jax.data import source
from vit_jax.data.sources import tfds as tfds_source
from vit_jax.vtab import tasks


class Vtab(tfds_source.Prepared):
  """Images and labels of one task, from all splits of its data set."""

  def __init__(self, task: str, *, data_dir: str | None = None):
    """Reads the data set's description; files are opened by the first read.

    Args:
      task: one of `tasks.TASKS`.
      data_dir: the folder of the prepared data; None means TFDS's default.

    Raises:
      ValueError: the task is unknown; its data is not prepared, not stored as
        ArrayRecord, or has other classes than the task.
    """
    self.task = tasks.find(task)
    builder = tfds_source.open_prepared(self.task.builder, data_dir)
    features = builder.info.features
    names = self.task.class_names or tuple(features['label'].names)
    if len(names) != self.task.num_classes:
      raise ValueError(
        f'vtab:{task} has {self.task.num_classes} classes, but'
        f' {builder.data_path} has {len(names)}. Prepare the original'
        f' {self.task.builder} again, or set data.data_dir to a folder with it.'
      )
    # `tfds.decode.PartialDecoding` also drops the other features in sequences,
    # but imports TensorFlow.
    read = {
      key: tfds.features.Sequence({p: features[key].feature[p] for p in parts})
      if parts
      else features[key]
      for key, parts in self.task.reads.items()
    }
    super().__init__(
      f'vtab:{task}', builder, 'image', read, self.task.label, names
    )

  def read(self, split: str, index: int) -> source.Record:
    """Reads one record: its image as stored, or as the task changes it."""
    record = super().read(split, index)
    if not self.task.image:
      return record
    return dataclasses.replace(record, image=self.task.image(record.image))
