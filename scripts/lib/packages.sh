# The compiler and the system packages. Sourced by scripts/setup.

minimum_cmake=3.25
data_folder=/usr/share/datasets/fashion-mnist

# A header of each library, and the Debian package that provides it. Checking for the header
# instead of the package accepts copies from elsewhere.
library_headers=(
  "gtest/gtest.h libgtest-dev"
  "benchmark/benchmark.h libbenchmark-dev"
  "CLI/CLI.hpp libcli11-dev"
  "nlohmann/json.hpp nlohmann-json3-dev"
  "spdlog/spdlog.h libspdlog-dev"
  "xxhash.h libxxhash-dev"
  "zlib.h zlib1g-dev"
)

# Sets $compiler: CXX, or what CMake would choose itself.
find_compiler() {
  local name
  for name in ${CXX:+"$CXX"} c++ g++ clang++; do
    # CXX may hold arguments and a launcher, as in "ccache g++".
    read -ra compiler <<<"$name"
    if have "${compiler[0]}"; then return; fi
    if [[ $name == "${CXX:-}" ]]; then
      fail "CXX is '$CXX', which does not exist" "Unset CXX, or set it to a compiler that exists."
    fi
  done
  fail "no C++ compiler" "Run: sudo apt-get install g++" "Then run the same command again."
}

check_compiler() {
  find_compiler
  local kind=g++ minimum=12 version newer
  if [[ $("${compiler[@]}" --version 2>/dev/null) == *clang* ]]; then kind=clang++ minimum=16; fi
  version=$("${compiler[@]}" -dumpfullversion -dumpversion 2>/dev/null) || version=0
  if at_least "$version" "$minimum"; then return; fi

  for newer in g++-{15,14,13,12} clang++-{20,19,18,17,16}; do
    if have "$newer"; then
      fail "'${compiler[*]}' is $kind $version; C++20 needs g++ 12 or clang++ 16" \
        "This machine has $newer. Set CXX=$newer and run the same command again (after 'make clean')."
    fi
  done
  fail "'${compiler[*]}' is $kind $version; C++20 needs g++ 12 or clang++ 16" \
    "Run: sudo apt-get install g++-12" \
    "Then set CXX=g++-12 and run the same command again."
}

# Prints the packages whose headers the compiler does not find, in one run of the compiler.
missing_libraries() {
  local entry
  for entry in "${library_headers[@]}"; do
    printf '#if !__has_include(<%s>)\nmissing %s\n#endif\n' "${entry% *}" "${entry#* }"
  done | "${compiler[@]}" -E -P -x c++ - 2>/dev/null | sed -n 's/^missing //p'
}

# Whether the clang that cmake/ClangToolchain.cmake chooses has libFuzzer.
clang_can_fuzz() {
  local name names=(clang++ clang++-{20,19,18,17,16,15,14})
  if [[ -n ${CXX:-} ]]; then names=("$CXX"); fi
  for name in "${names[@]}"; do
    if ! have "$name"; then continue; fi
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
      "$name" -x c++ -fsanitize=fuzzer,address - -o build/setup.fuzzer 2>/dev/null || return 1
    rm build/setup.fuzzer
    return
  done
  return 1
}

# Sets $packages, which must be installed, and $extras, which are optional.
find_missing_packages() {
  packages=() extras=()
  if [[ $goal == lint ]]; then
    if ! have clang-format && ! have "${CLANG_FORMAT:-clang-format-14}"; then
      packages+=(clang-format)
    fi
    if ! have python3; then packages+=(python3); fi
    return
  fi
  if ! have cmake; then packages+=(cmake); fi
  if ! have ninja; then packages+=(ninja-build); fi
  local name
  for name in $(missing_libraries); do packages+=("$name"); done
  if [[ $goal == demo || $goal == test ]] && [[ ! -e $data_folder/train-images-idx3-ubyte.gz ]]; then
    packages+=(dataset-fashion-mnist)
  fi
  if [[ $goal == test ]] && ! have mpirun; then packages+=(openmpi-bin); fi
  if [[ $goal == fuzz ]] && ! clang_can_fuzz; then
    packages+=(clang)
    # On systems where the sanitizers are not part of clang's own packages.
    if have apt-cache && [[ -n $(apt-cache search --names-only '^libclang-rt-dev$') ]]; then
      packages+=(libclang-rt-dev)
    fi
  fi
  if [[ -n $venv_needs ]] && ! venv_can_be_made; then
    packages+=(python3 python3-venv)
  fi
  for name in ccache mold; do
    if ! have "$name"; then extras+=("$name"); fi
  done
}

# Sets $as_root to the prefix that runs a command as root; fails if there is none.
# "ask" allows sudo to ask for a password.
find_root() {
  as_root=(env DEBIAN_FRONTEND=noninteractive LC_ALL=C)
  have apt-get || return 1
  if ((EUID == 0)); then return; fi
  have sudo || return 1
  if sudo -n true 2>/dev/null || { [[ $1 == ask && -t 0 ]] && sudo -v; }; then
    as_root=(sudo "${as_root[@]}")
    return
  fi
  return 1
}

apt_install() {
  logged "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

apt_update() { logged "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update; }

install_packages() {
  find_missing_packages
  begin_log_part
  if ((${#packages[@]} > 0)); then
    if ! find_root ask; then explain_no_root; fi
    # Do not stop if the update fails: the lists on the disk may be good enough.
    step "updating the package lists" apt_update || true
    step "installing ${packages[*]}" apt_install "${packages[@]}" ||
      fail_from_log "apt-get could not install ${packages[*]}"
    find_missing_packages
    if ((${#packages[@]} > 0)); then
      fail "installed, but not found: ${packages[*]}" \
        "Check CXX, PYTHON and PATH: the compiler or Python in use may not be the system's."
    fi
    install_extras
  elif ((${#extras[@]} > 0)) && [[ ! -e build/setup.extras ]]; then
    if find_root never; then step "updating the package lists" apt_update || true; fi
    install_extras
  fi
}

# ccache and mold only make builds faster, so failures here are only notes.
# Tried once per build folder.
install_extras() {
  local name
  for name in "${extras[@]}"; do
    if ! find_root never || ! step "installing $name" apt_install "$name"; then
      say "note: $name is not installed; builds work without it, but are slower (sudo apt-get install $name)"
    fi
  done
  touch build/setup.extras
}

explain_no_root() {
  if have apt-get; then
    fail "some packages are missing, and this user cannot install them. Run:" \
      "sudo apt-get install ${packages[*]}"
  fi
  fail "some packages are missing, and this system has no apt-get" \
    "Install the equivalents of these Debian packages: ${packages[*]}" "Then run the same command again."
}

check_cmake() {
  local version
  read -r _ _ version < <(cmake --version 2>/dev/null) || version=0
  if ! at_least "$version" "$minimum_cmake"; then
    fail "cmake is $version; $minimum_cmake or newer is needed" \
      "Run: python3 -m pip install --user cmake   (and put ~/.local/bin first in PATH)" \
      "Then run the same command again."
  fi
}
