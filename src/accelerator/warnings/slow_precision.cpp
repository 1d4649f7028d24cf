#include "accelerator/warnings/slow_precision.h"

#include <algorithm>
#include <array>
#include <fstream>

namespace accelerant::detail {
namespace {

bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    const bool begins = at == 0 || text[at - 1] == ' ';
    const std::size_t end = at + word.size();
    if (begins && (end == text.size() || text[end] == ' ')) return true;
  }
  return false;
}

// Any of them makes products in the type fast: x86 first, then ARM.
constexpr std::array<std::string_view, 3> kBf16 = {"avx512_bf16", "amx_bf16", "bf16"};
constexpr std::array<std::string_view, 3> kFp16 = {"avx512_fp16", "amx_fp16", "asimdhp"};

}  // namespace

std::string cpu_instructions() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const bool is_list = line.starts_with("flags") || line.starts_with("Features");
    const std::size_t colon = line.find(':');
    if (is_list && colon != std::string::npos) return line.substr(colon + 1);
  }
  return {};
}

std::optional<std::string> why_slow(Precision precision, std::string_view instructions) {
  if (precision == Precision::no || instructions.empty()) return std::nullopt;
  const bool is_bf16 = precision == Precision::bf16;
  const auto& fast = is_bf16 ? kBf16 : kFp16;
  if (std::ranges::any_of(fast, [&](auto word) { return has_word(instructions, word); })) {
    return std::nullopt;
  }
  const std::string name = is_bf16 ? "bf16" : "fp16";
  const bool has_bf16 =
      std::ranges::any_of(kBf16, [&](auto word) { return has_word(instructions, word); });
  return "mixed_precision = " + name + " will be slow: this CPU has no " + name +
         " instructions, so each operand is converted to float32 and back, and steps can take "
         "several times as long as in float32. Write .mixed_precision = accelerant::Precision::" +
         (!is_bf16 && has_bf16 ? "bf16, which this CPU computes fast" : "no");
}

void warn_if_slow(Warnings& warnings, Precision precision) {
  if (!warnings.is_open(&WarningOptions::slow_precision)) return;
  if (const auto text = why_slow(precision, cpu_instructions())) {
    warnings.say(&WarningOptions::slow_precision, *text);
  }
}

}  // namespace accelerant::detail
