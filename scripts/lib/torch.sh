# Finds libtorch and the Python to compare with, writes build/setup.cmake. Sourced by scripts/setup.

minimum_torch=2.11

# --- What is available -------------------------------------------------------

# Describes a Python without importing torch, which would take seconds. Prints lines of
# "name=value": python, python_version, torch's folder, version and CUDA version, and
# "oracles=yes" if it has everything that the tests compare with.
probe_program='
import importlib.util, os, re, sys
def found(name):
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
print("python=" + sys.executable)
print("python_version=%d.%d" % sys.version_info[:2])
torch = found("torch")
if torch and torch.origin:
    folder = os.path.dirname(torch.origin)
    try:
        with open(os.path.join(folder, "version.py")) as file:
            text = file.read()
    except OSError:
        text = ""
    def value(name):
        match = re.search(name + r"\b[^=\n]*=\s*[\x22\x27]([^\x22\x27]+)", text)
        return match.group(1) if match else ""
    print("folder=" + folder)
    print("version=" + value("__version__"))
    print("cuda=" + value("cuda"))
names = "accelerate numpy pytest safetensors tensorboard transformers".split()
print("oracles=" + ("yes" if torch and all(map(found, names)) else ""))
'

# probe PYTHON  fills the array $probe.
probe() {
  declare -gA probe=()
  local line
  while IFS= read -r line; do probe[${line%%=*}]=${line#*=}; done \
    < <("$1" -c "$probe_program" 2>/dev/null)
}

torch_config_version() {
  sed -n 's/^set(PACKAGE_VERSION "\([^"]*\)").*/\1/p' "$1/TorchConfigVersion.cmake" 2>/dev/null
}

have_nvcc() {
  have nvcc || [[ -x ${CUDACXX:-none} || -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]
}

# --- Which libtorch, which Python ---------------------------------------------

# use_torch FOLDER VERSION ORIGIN
use_torch() { torch_dir=$1 torch_version=$2 torch_origin=$3; }

# Sets $torch_dir, $torch_version and $torch_origin, and $venv_needs to "torch" if
# libtorch will come from .venv.
choose_torch() {
  venv_needs= torch_origin=
  probe_active_python
  torch_from_variable
  if [[ -z $torch_origin ]]; then torch_from_prefix_path; fi
  if [[ -z $torch_origin ]]; then torch_from_python; fi
  if [[ -z $torch_origin ]]; then venv_needs=torch; fi
}

# An activated .venv must not count as the user's own Python: it may be incomplete.
probe_active_python() {
  local folder kept=
  while IFS= read -rd: folder; do
    if [[ $folder != "$root/.venv/bin" ]]; then kept+=${kept:+:}$folder; fi
  done <<<"$PATH:"
  PATH=$kept
  unset VIRTUAL_ENV PYTHONHOME
  if [[ -n ${PYTHON:-} ]] && ! have "$PYTHON"; then
    fail "PYTHON is '$PYTHON', which does not exist" "Unset it, or set it to a Python that exists."
  fi
  probe "${PYTHON:-python3}"
  python=${probe[python]:-} python_version=${probe[python_version]:-0}
  python_oracles=${probe[oracles]:-}
  python_torch=${probe[folder]:-} python_torch_version=${probe[version]:-0}
  python_torch_cuda=${probe[cuda]:-}
}

# A wrong Torch_DIR is an error, because the user set it on purpose.
torch_from_variable() {
  if [[ -z ${Torch_DIR:-} ]]; then return; fi
  if [[ ! -e $Torch_DIR/TorchConfig.cmake ]]; then
    fail "Torch_DIR is '$Torch_DIR', which has no TorchConfig.cmake" \
      "It is usually <libtorch>/share/cmake/Torch. Correct it, or unset it to have libtorch installed."
  fi
  local version
  version=$(torch_config_version "$Torch_DIR")
  if ! at_least "${version:-0}" $minimum_torch; then
    fail "Torch_DIR has libtorch ${version:-of unknown version}; $minimum_torch or newer is needed" \
      "Set it to a newer one, or unset it to have one installed."
  fi
  local folder
  folder=$(cd "$Torch_DIR" && pwd)
  use_torch "$folder" "$version" "$folder"
}

torch_from_prefix_path() {
  local prefix folder version
  while IFS= read -rd: prefix; do
    if [[ -z $prefix ]]; then continue; fi
    # torch.utils.cmake_prefix_path returns the last form.
    for folder in "$prefix"/share/cmake/Torch "$prefix"/lib/cmake/Torch "$prefix"/Torch; do
      if [[ ! -e $folder/TorchConfig.cmake ]]; then continue; fi
      version=$(torch_config_version "$folder")
      if at_least "${version:-0}" $minimum_torch; then
        use_torch "$(cd "$folder" && pwd)" "$version" "$prefix"
        return
      fi
      say "note: libtorch ${version:-of unknown version} in $prefix is older than $minimum_torch: not used"
    done
  done <<<"${CMAKE_PREFIX_PATH:-}:"
}

torch_from_python() {
  local folder=$python_torch/share/cmake/Torch version=$python_torch_version
  if [[ -z $python_torch || ! -e $folder/TorchConfig.cmake ]]; then return; fi
  if ! at_least "$version" $minimum_torch; then
    say "note: $python has torch $version, older than $minimum_torch: not used"
  elif [[ -n $python_torch_cuda ]] && ! have_nvcc; then
    say "note: $python has torch for CUDA $python_torch_cuda, but there is no CUDA toolkit: not used"
  else
    use_torch "$folder" "$version" "$python"
  fi
}

# Sets $oracle, the Python that the tests compare with, or requests .venv for it.
#
# The user's Python is used if it already has torch and every oracle. If it lacks some, nothing is
# installed into it, because it is not ours. Instead .venv gets the pinned torch and oracles and is
# used only for comparing, while the C++ side is still built with the user's libtorch.
choose_oracle() {
  oracle=
  if [[ $goal == test ]]; then
    if [[ -z $venv_needs && -n $python_oracles ]] && at_least "$python_torch_version" $minimum_torch; then
      oracle=$python
    else
      venv_needs+=${venv_needs:+ }oracles
    fi
    return
  fi
  # Other goals do not use the oracle. Keep the result of an earlier run: a changed value
  # would only make CMake configure again.
  if [[ -e build/setup.cmake ]]; then
    oracle=$(sed -n 's/^set(ACCELERANT_PYTHON "\([^"]*\)".*/\1/p' build/setup.cmake)
    if [[ ! -x $oracle ]]; then oracle=; fi
  fi
  if [[ -z $oracle && -z $venv_needs && -n $python_torch ]]; then oracle=$python; fi
}

# --- build/setup.cmake --------------------------------------------------------

# Rewritten only if the content changes, because CMake configures again if the file is newer.
write_cmake_cache() {
  local text
  text=$(
    cat <<END
# Written by scripts/setup, for "cmake -C". Do not edit: changes are lost.
set(Torch_DIR "$torch_dir" CACHE PATH "" FORCE)
set(ACCELERANT_PYTHON "$oracle" CACHE FILEPATH "" FORCE)
END
  )
  if [[ -e build/setup.cmake && $(<build/setup.cmake) == "$text" ]]; then return; fi
  printf '%s\n' "$text" >build/setup.cmake.new
  mv build/setup.cmake.new build/setup.cmake
  say "wrote build/setup.cmake"
}
