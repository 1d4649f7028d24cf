# The virtual environment .venv. Sourced by scripts/setup.

minimum_python=3.10         # for torch
minimum_oracle_python=3.11  # for requirements/test.txt

# A stamp records that pip succeeded with exactly these requirements.
stamp_of() { cat "$@" | cksum; }
torch_stamp() { stamp_of requirements/torch.txt; }
test_stamp() { stamp_of requirements/torch.txt requirements/test.txt; }

has_stamp() { [[ -e $1 && $(<"$1") == "$2" ]]; }

# The stamps count only as long as Python still finds the packages.
venv_is_ready() {
  if [[ ! -x .venv/bin/python ]]; then return 1; fi
  has_stamp .venv/torch.stamp "$(torch_stamp)" || return 1
  if [[ $venv_needs == *oracles* ]]; then
    has_stamp .venv/test.stamp "$(test_stamp)" || return 1
  fi
  probe .venv/bin/python
  [[ -e ${probe[folder]:-}/share/cmake/Torch/TorchConfig.cmake ]] || return 1
  [[ $venv_needs != *oracles* || -n ${probe[oracles]:-} ]]
}

# Debian moves ensurepip from Python to python3-venv. Once .venv has pip, it is not needed.
venv_can_be_made() {
  if [[ -x .venv/bin/python ]] && compgen -G '.venv/lib/python3*/site-packages/pip' >/dev/null; then
    return
  fi
  "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null
}

make_venv() {
  if [[ -z $venv_needs ]]; then return; fi
  if ! venv_is_ready; then
    check_python
    create_venv
    install_torch
    if [[ $venv_needs == *oracles* ]]; then install_oracles; fi
    if ! venv_is_ready; then
      fail ".venv is not usable after its installation" \
        "Remove it (rm -rf .venv) and run the same command again. The log is $log."
    fi
  fi
  if [[ $venv_needs == *torch* ]]; then
    use_torch "${probe[folder]}/share/cmake/Torch" "${probe[version]}" "$root/.venv"
  fi
  if [[ $venv_needs == *oracles* || -z $oracle ]]; then oracle=$root/.venv/bin/python; fi
}

check_python() {
  # apt-get may have just installed Python.
  if [[ -z $python ]]; then probe_active_python; fi
  local minimum=$minimum_python
  if [[ $venv_needs == *oracles* ]]; then minimum=$minimum_oracle_python; fi
  if ! at_least "$python_version" "$minimum"; then
    fail "${PYTHON:-python3} is Python $python_version; $minimum or newer is needed for '$goal'" \
      "Install a newer one, set PYTHON to its name (as in PYTHON=python3.12), and run the same command again."
  fi
}

# If pip does not run, creating the environment was interrupted, or its Python is gone.
create_venv() {
  if [[ -d .venv ]] && ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say ".venv is incomplete: creating it again"
    rm -rf .venv
  fi
  begin_log_part
  if [[ ! -d .venv ]]; then
    step "creating .venv with Python $python_version" logged "$python" -m venv .venv ||
      fail_from_log "could not create the virtual environment .venv"
  fi
  # pip writes INSTALLER after the files. A package without it is incomplete, and pip would not notice.
  local info
  for info in .venv/lib/python3*/site-packages/*.dist-info; do
    if [[ -d $info && ! -e $info/INSTALLER ]]; then rm -rf "$info"; fi
  done
}

pip_install() {
  logged .venv/bin/python -m pip install --disable-pip-version-check --no-input "$@"
}

install_torch() {
  if has_stamp .venv/torch.stamp "$(torch_stamp)" && [[ -n $(find_venv_torch) ]]; then return; fi

  rm -f .venv/torch.stamp
  begin_log_part
  if [[ -z $(find_venv_torch) ]] && (($(free_megabytes) < 3000)); then
    fail "torch needs about 3 GB of disk, and $(free_space)" \
      "Free some space, or use an existing libtorch (Torch_DIR), and run the same command again."
  fi
  step "installing $(grep ^torch requirements/torch.txt) into .venv (log: $log)" \
    pip_install -r requirements/torch.txt || fail_from_log "pip could not install torch"
  if venv_torch_needs_cuda && ! have_nvcc; then
    fail "pip installed a torch that is built for CUDA, but there is no nvcc" \
      "Install the CUDA toolkit, or tell pip where CPU wheels are (PIP_INDEX_URL; see pytorch.org)," \
      "remove .venv and run the same command again."
  fi
  torch_stamp >.venv/torch.stamp
}

# torch/version.py says which CUDA the wheel was built for, or None.
venv_torch_needs_cuda() {
  grep -qsE "^cuda.*= *'" .venv/lib/python3*/site-packages/torch/version.py
}

find_venv_torch() { compgen -G '.venv/lib/python3*/site-packages/torch/share/cmake/Torch' || true; }

install_oracles() {
  rm -f .venv/test.stamp
  begin_log_part
  if (($(free_megabytes) < 1000)); then
    fail "the test packages need about 1 GB of disk, and $(free_space)" \
      "Free some space and run the same command again."
  fi
  step "installing requirements/test.txt into .venv (log: $log)" \
    pip_install -c requirements/torch.txt -r requirements/test.txt ||
    fail_from_log "pip could not install requirements/test.txt"
  test_stamp >.venv/test.stamp
}
