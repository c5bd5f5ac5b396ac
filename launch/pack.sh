#!/usr/bin/env bash
# Packs the local code: the commit, local changes, and new files that git does
# not ignore.
#
#   bash launch/pack.sh DIRECTORY
#
# writes DIRECTORY/code.tar.gz. In the archive, launch_record/ describes the
# code: commit, local.diff (apply it to the commit to restore these files),
# packed (the time) and left_out. The index and the repository do not change.
# New files above PACK_LIMIT_MIB (20) are refused: they are probably data.
set -euo pipefail

if [[ $# -ne 1 ]]; then
  echo 'usage: bash launch/pack.sh DIRECTORY' >&2
  exit 2
fi
mkdir -p -- "$1"
out=$(cd -- "$1" && pwd)
limit_mib=${PACK_LIMIT_MIB:-20}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ! -f setup.py ]]; then
  echo "error: only a checkout, which has a commit, can be shipped, but $PWD is" \
    'an installed package. Clone the repository and start the program in its' \
    'root: python launch/tpu_vm.py or launch/gke.py.' >&2
  exit 1
fi
if ! root=$(git rev-parse --show-toplevel 2>/dev/null); then
  echo "error: $PWD is no git repository, so no commit can be recorded." \
    'Clone the repository, or run git init and commit.' >&2
  exit 1
fi
cd "$root"
if ! commit=$(git rev-parse --verify --quiet 'HEAD^{commit}'); then
  echo "error: $root has no commit yet; commit first." >&2
  exit 1
fi

# A name may look like an option or an action of find, such as -exec.
too_large=$(git ls-files -z --others --exclude-standard |
  while IFS= read -r -d '' name; do printf './%s\0' "$name"; done |
  xargs -0 -r sh -c 'find "$@" -maxdepth 0 -size +'"$((limit_mib * 1024))"'k' sh)
if [[ -n $too_large ]]; then
  echo "error: new files larger than $limit_mib MiB are not shipped:" >&2
  echo "$too_large" >&2
  echo 'List them in .gitignore, commit them, or set PACK_LIMIT_MIB.' >&2
  exit 1
fi

# A temporary index and object store, so that git add changes nothing in the
# repository.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
objects=$(cd "$(git rev-parse --git-path objects)" && pwd)
export GIT_INDEX_FILE=$scratch/index
export GIT_OBJECT_DIRECTORY=$scratch/objects
export GIT_ALTERNATE_OBJECT_DIRECTORIES=$objects
mkdir "$scratch/objects" "$scratch/record"

git read-tree "$commit"
git add --all
git diff --cached --binary "$commit" >"$scratch/record/local.diff"
echo "$commit" >"$scratch/record/commit"
date -u +%Y-%m-%dT%H:%M:%SZ >"$scratch/record/packed"
git ls-files --others --ignored --exclude-standard --directory \
  >"$scratch/record/left_out"
for name in commit local.diff packed left_out; do
  blob=$(git hash-object -w --no-filters "$scratch/record/$name")
  git update-index --add --cacheinfo "100644,$blob,launch_record/$name"
done
git archive --format=tar.gz --output="$out/code.tar.gz" "$(git write-tree)"

changed=$(git diff --cached --name-only "$commit" -- . ':!launch_record' |
  wc -l)
echo "code: commit ${commit:0:12} and $changed locally changed or new file(s)"
ignored=$(wc -l <"$scratch/record/left_out")
if ((ignored > 0)); then
  echo "left out: $ignored path(s) that git ignores:" \
    "$(head -n 5 "$scratch/record/left_out" | tr '\n' ' ')"
fi
submodules=$(git ls-files --stage | grep -c '^160000' || true)
if ((submodules > 0)); then
  echo "left out: the contents of $submodules submodule(s)"
fi
