#!/usr/bin/env bash
# Make .venv hold the tested versions and the four packages (editable): with `demo` as its argument what these need to
# run, otherwise what develops them too. With VERSIONS=lowest or newest, .venv-lowest or .venv-newest hold what their
# tests need, in the lowest versions that the packages allow or in the newest. Does nothing, at once, when they already
# do: the stamps are the hash of everything that decides what is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

versions=${VERSIONS:-}
if [[ ! $versions =~ ^(lowest|newest)?$ ]]; then
  echo "error: VERSIONS: got '$versions', expected lowest or newest, or nothing for those of constraints.txt" >&2
  exit 1
fi
env=.venv${versions:+-$versions}
if [[ "${OS:-}" == Windows_NT ]]; then bin=$env/Scripts; else bin=$env/bin; fi
inputs=(constraints.txt pyproject.toml packages/*/pyproject.toml scripts/venv.sh)
# cksum is POSIX; the path is part of the key because a moved virtual environment is a broken one
key="$(pwd) $(cat "${inputs[@]}" | cksum)"
holds() { [[ -f $1 && "$(cat "$1")" == "$key" ]]; }
stamp=$env/.stamp
if holds "$stamp"; then exit 0; fi
what=("packages/prvr[encoders,plot]" --editable "packages/prvr-search[serve,milvus,otio,ocr]")
groups=(--group dev)
if [[ -n $versions ]]; then
  groups=(--group test --group docs --group build)
elif [[ ${1:-} == demo ]]; then
  stamp=$env/.stamp-demo what=(packages/prvr --editable "packages/prvr-search[serve]") groups=()
  if holds "$stamp"; then exit 0; fi
fi

supported() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }
# A kill may leave a Python without pip, or with half of one; .made says that venv came to its end.
whole() { [[ -f $env/.made || -f $stamp ]] && "$1" -c 'import pip._internal.commands.install' >/dev/null 2>&1; }
if ! supported "$bin/python" || ! whole "$bin/python"; then
  chosen=""
  candidates=${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14 python}
  for candidate in $candidates; do
    if supported "$candidate"; then chosen=$candidate; break; fi
  done
  if [[ -z $chosen ]]; then
    echo "error: no Python 3.11 to 3.14 with the venv module found (looked for: ${candidates// /, })." >&2
    echo "       Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
    exit 1
  fi
  echo "creating $env with $("$chosen" --version)"
  "$chosen" -m venv --clear "$env"
  touch "$env/.made"
fi

install=("$bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt)
if [[ -n $versions ]]; then
  "${install[@]}" uv  # pip cannot choose the lowest versions
  [[ $versions == lowest ]] && resolution=lowest-direct || resolution=highest
  install=("$bin/python" -m uv pip install --quiet --python "$bin/python" --upgrade --resolution "$resolution")
else
  "${install[@]}" --upgrade pip  # --group needs pip 25.1
  "${install[@]}" torch          # alone and first: a failure names it
fi
"${install[@]}" --editable packages/lorentz --editable packages/regdiff --editable "${what[@]}" \
  ${groups[@]+"${groups[@]}"}
printf '%s' "$key" > "$stamp"
echo "$env is ready"
