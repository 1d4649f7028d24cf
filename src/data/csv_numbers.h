// Numbers as CSV files write them.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <string_view>
#include <system_error>

namespace accelerant::data {

enum class NumberResult { ok, not_a_number, out_of_range };

namespace detail {

// What from_chars accepts beyond numbers: "nan(text)".
inline bool is_plain_number(std::string_view text) {
  return text.find('(') == std::string_view::npos;
}

// A number too small for Number is its zero; one too large is an error. from_chars does not tell
// which; a wider type does. Out of range for that one too: nobody knows, so it is an error.
template <std::floating_point Number>
NumberResult round_out_of_range(std::string_view text, Number& value) {
  long double wide = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), wide);
  if (code != std::errc() || std::abs(wide) > 1) return NumberResult::out_of_range;
  value = static_cast<Number>(wide);
  return NumberResult::ok;
}

}  // namespace detail

// `text` has no spaces around it. `value` is set only when the result is ok.
template <class Number>
NumberResult parse_number(std::string_view text, Number& value) {
  // from_chars takes no plus sign; what follows one must not be a second sign.
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  Number parsed{};
  const char* const text_end = text.data() + text.size();
  const auto [end, code] = std::from_chars(text.data(), text_end, parsed);
  if (code == std::errc::invalid_argument || end != text_end) return NumberResult::not_a_number;
  if constexpr (std::floating_point<Number>) {
    if (!detail::is_plain_number(text)) return NumberResult::not_a_number;
    if (code == std::errc::result_out_of_range) return detail::round_out_of_range(text, value);
  }
  if (code != std::errc()) return NumberResult::out_of_range;
  value = parsed;
  return NumberResult::ok;
}

}  // namespace accelerant::data
