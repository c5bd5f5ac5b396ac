"""Writes the images of a folder as a TFDS ArrayRecord data set."""

import io
import os

import tensorflow_datasets as tfds

from vit_jax import data


def write(folder, data_dir, name='from_folder'):
  """Writes `folder:FOLDER` as `tfds:NAME` under `data_dir`.

  Splits, class names, the order of the records and their bytes stay the same.

  Args:
    folder: a folder that `data.open_source('folder:...')` opens.
    data_dir: folder of the written data set.
    name: TFDS's name of the data set, lower case with underscores.
  """
  source = data.open_source(f'folder:{os.fspath(folder)}')
  features = {
    'image': tfds.features.Image(),
    'label': tfds.features.ClassLabel(names=source.info.class_names),
  }
  examples = {
    split: [
      {'image': io.BytesIO(record.image), 'label': record.label}
      for record in data.View(source, split)
    ]
    for split in source.info.splits
  }
  write_examples(examples, features, data_dir, name)


def write_examples(examples, features, data_dir, name):
  """Writes lists of examples, split -> list, of the given TFDS features."""
  dataset_name = name

  class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    name = dataset_name
    # TFDS would look here for checksums of downloads. There are none, and
    # finding the default path needs another package.
    code_path = None
    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(features),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      return {split: enumerate(examples[split]) for split in examples}

    def _generate_examples(self):
      raise NotImplementedError  # `_split_generators` holds the examples.

  Builder(data_dir=os.fspath(data_dir)).download_and_prepare(
    file_format='array_record'
  )
