// The layout of help texts.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace accelerant::cli {

// Columns to write help in: COLUMNS, else the width of the terminal, else 80. Between 40 and 100,
// as longer lines are hard to read.
std::size_t help_width();

// The text with line breaks, so that no line is longer than `width` unless a single word is. Blank
// lines separate paragraphs and stay; other line breaks count as spaces.
std::string wrapped(const std::string& text, std::size_t width);

// Names and what they mean in two columns, each row indented by two spaces. Where the terminal is
// too narrow for that, the meaning goes below the name. Ends with a line break.
std::string definition_list(const std::vector<std::pair<std::string, std::string>>& rows,
                            std::size_t width);

}  // namespace accelerant::cli
