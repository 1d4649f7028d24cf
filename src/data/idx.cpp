#include "accelerant/data/idx.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "data/byte_source.h"
#include "data/growing_array.h"

namespace accelerant::data {
namespace {

// Memory grows in steps no larger than this, or than what has been read already.
constexpr std::size_t largest_first_step = std::size_t{64} << 20;

struct Header {
  at::ScalarType type = at::kByte;
  std::vector<int64_t> sizes;
  uint64_t bytes = 0;  // of the data that follow
};

void read_exactly(ByteSource& source, void* target, std::size_t size) {
  if (source.read(target, size) < size) source.fail("is truncated");
}

at::ScalarType element_type(const ByteSource& source, uint8_t code) {
  switch (code) {
    case 0x08:
      return at::kByte;
    case 0x09:
      return at::kChar;
    case 0x0B:
      return at::kShort;
    case 0x0C:
      return at::kInt;
    case 0x0D:
      return at::kFloat;
    case 0x0E:
      return at::kDouble;
    default:
      break;
  }
  source.fail(
      c10::str("is no IDX file: expected one of the element types 8, 9, 11, 12, 13, 14, got ",
               static_cast<int>(code)));
}

Header read_header(ByteSource& source) {
  std::array<uint8_t, 4> magic{};
  read_exactly(source, magic.data(), magic.size());
  if (magic[0] != 0 || magic[1] != 0) {
    source.fail(c10::str("is no IDX file: expected it to begin with two zero bytes, got ",
                         static_cast<int>(magic[0]), " and ", static_cast<int>(magic[1])));
  }
  Header header{.type = element_type(source, magic[2]), .sizes = {}, .bytes = 0};
  std::vector<uint8_t> raw(std::size_t{4} * magic[3]);
  read_exactly(source, raw.data(), raw.size());
  for (std::size_t i = 0; i < raw.size(); i += 4) {
    header.sizes.push_back(int64_t{raw[i]} << 24 | int64_t{raw[i + 1]} << 16 |
                           int64_t{raw[i + 2]} << 8 | int64_t{raw[i + 3]});
  }

  // Strides are products too, in which a size of zero counts as one; so they must fit as well.
  int64_t with_ones = static_cast<int64_t>(c10::elementSize(header.type));
  bool empty = false;
  for (const int64_t size : header.sizes) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(with_ones, std::max<int64_t>(size, 1), &with_ones)) {
      source.fail(
          c10::str("has an impossible header: sizes [", c10::Join(", ", header.sizes), "]"));
    }
  }
  header.bytes = empty ? 0 : static_cast<uint64_t>(with_ones);
  return header;
}

// Refuses what cannot be, before memory is taken for it.
void check_against_file(const ByteSource& source, const Header& header) {
  const auto largest = source.largest_content();
  if (!largest) return;
  const uint64_t needed = 4 + 4 * header.sizes.size() + header.bytes;
  if (needed > *largest) {
    source.fail(c10::str("is truncated: sizes [", c10::Join(", ", header.sizes), "] need ", needed,
                         " bytes, the file has ", source.is_plain() ? "" : "at most ", *largest));
  }
}

template <class Number>
void swap_bytes(std::byte* begin, std::size_t size) {
  auto* const numbers = reinterpret_cast<Number*>(begin);
  for (std::size_t i = 0; i < size / sizeof(Number); ++i) {
    if constexpr (sizeof(Number) == 2) numbers[i] = __builtin_bswap16(numbers[i]);
    if constexpr (sizeof(Number) == 4) numbers[i] = __builtin_bswap32(numbers[i]);
    if constexpr (sizeof(Number) == 8) numbers[i] = __builtin_bswap64(numbers[i]);
  }
}

// The file is big-endian.
void to_native_order(std::byte* begin, std::size_t size, std::size_t element) {
  if constexpr (std::endian::native == std::endian::big) return;
  if (element == 2) swap_bytes<uint16_t>(begin, size);
  if (element == 4) swap_bytes<uint32_t>(begin, size);
  if (element == 8) swap_bytes<uint64_t>(begin, size);
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  ByteSource source(path);
  const Header header = read_header(source);
  check_against_file(source, header);

  const std::size_t element = c10::elementSize(header.type);
  GrowingArray data;
  while (data.size() < header.bytes) {
    const std::size_t step =
        std::min<uint64_t>(header.bytes - data.size(), std::max(largest_first_step, data.size()));
    std::byte* const place = data.append(step);
    read_exactly(source, place, step);
    to_native_order(place, step, element);  // steps are whole numbers of elements
  }
  // Also makes a gzip file check its checksum, which lies after the data.
  if (char byte = 0; source.read(&byte, 1) > 0) {
    source.fail(
        c10::str("has more bytes than its sizes [", c10::Join(", ", header.sizes), "] need"));
  }
  return data.into_tensor(header.sizes, header.type);
}

}  // namespace accelerant::data
