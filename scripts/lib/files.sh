# Lists the files of this project. Sourced by scripts/lint and scripts/format.

# All files that git tracks, and new files that it does not ignore.
list_files() {
  local file
  git ls-files --cached --others --exclude-standard | sort -u | while IFS= read -r file; do
    if [[ -f $file && ! -L $file ]]; then printf '%s\n' "$file"; fi
  done
}

only_cpp() { grep -E '\.(h|cpp|cu|cuh)$' || true; }

# Prefers the version in .clang-format's first line: others break some lines differently.
find_clang_format() {
  local name
  for name in ${CLANG_FORMAT:-clang-format-14 clang-format}; do
    if command -v "$name" >/dev/null; then
      printf '%s' "$name"
      return
    fi
  done
  echo "clang-format is missing: run scripts/setup lint" >&2
  return 1
}
