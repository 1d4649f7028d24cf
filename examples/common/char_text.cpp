#include "common/char_text.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

namespace examples {

CharText::CharText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be opened: " + std::strerror(errno));
  const std::string text(std::istreambuf_iterator<char>(file), {});

  const std::set<char> sorted(text.begin(), text.end());
  symbols_.assign(sorted.begin(), sorted.end());
  tokens_ = at::empty({static_cast<int64_t>(text.size())}, at::kLong);
  std::transform(text.begin(), text.end(), tokens_.data_ptr<int64_t>(),
                 [this](char character) { return token(character); });
}

int64_t CharText::token(char character) const {
  const std::size_t place = symbols_.find(character);
  return place == std::string::npos ? -1 : static_cast<int64_t>(place);
}

std::string CharText::decode(const at::Tensor& tokens) const {
  const at::Tensor flat = tokens.to(at::kCPU, at::kLong).contiguous();
  std::string text;
  for (int64_t i = 0; i < flat.numel(); ++i) {
    text += symbols_.at(static_cast<std::size_t>(flat.data_ptr<int64_t>()[i]));
  }
  return text;
}

}  // namespace examples
