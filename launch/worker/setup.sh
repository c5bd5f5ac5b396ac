#!/usr/bin/env bash
# On a worker: unpacks ~/vit_jax_code.tar.gz and installs it for the TPU.
#
# The machine's own Python may be too old, so uv brings one. A second run with
# the same dependencies takes seconds.
#
#   VIT_JAX_HOME    where everything lies (~/vit_jax_home)
#   PYTHON_VERSION  which Python (3.12)
#   EXTRAS          of the package (tpu,gcs)
set -euo pipefail

home=${VIT_JAX_HOME:-$HOME/vit_jax_home}
python_version=${PYTHON_VERSION:-3.12}
extras=${EXTRAS:-tpu,gcs}
archive=$HOME/vit_jax_code.tar.gz

if systemctl is-active --quiet vit_jax 2>/dev/null; then
  echo "error: a run is alive on $HOSTNAME, and its code is not replaced" \
    'under it. Stop it first.' >&2
  exit 1
fi
mkdir -p "$home"
if [[ -f $archive ]]; then
  rm -rf "$home/code.new"
  mkdir "$home/code.new"
  tar -xzf "$archive" -C "$home/code.new"
  rm -rf "$home/code"
  mv "$home/code.new" "$home/code"
elif [[ ! -d $home/code ]]; then
  echo "error: no $archive on $HOSTNAME." >&2
  exit 1
fi

export UV_INSTALL_DIR=$home/bin UV_PYTHON_INSTALL_DIR=$home/python
export PATH=$UV_INSTALL_DIR:$PATH
if ! command -v uv >/dev/null; then
  curl --location --silent --show-error --fail --retry 5 \
    https://astral.sh/uv/install.sh | UV_NO_MODIFY_PATH=1 sh
fi
if [[ ! -x $home/venv/bin/python ]]; then
  uv venv --quiet --python "$python_version" "$home/venv"
fi
uv pip install --quiet --python "$home/venv/bin/python" \
  --editable "$home/code[$extras]"
cd "$home"
"$home/venv/bin/python" -c 'from importlib.metadata import version
import platform
import vit_jax
print(platform.node() + ": ready, Python " + platform.python_version()
      + ", jax " + version("jax"))'
