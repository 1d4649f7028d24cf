#include "store/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <utility>

#include "store/checksum_avx2.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kDigits = 16;

using SumUpAll = std::uint64_t (*)(const void* bytes, std::size_t size);

// The compiler may only assume SSE2, with which XXH3 takes as long as copying the same memory.
SumUpAll fastest_sum() {
#if defined(ACCELERANT_CHECKSUM_AVX2)
  if (__builtin_cpu_supports("avx2")) return checksum_with_avx2;
#endif
  return
      [](const void* bytes, std::size_t size) -> std::uint64_t { return XXH3_64bits(bytes, size); };
}

}  // namespace

struct Checksum::State {
  XXH3_state_t* xxh3 = XXH3_createState();  // needs stricter alignment than `new` gives
};

void Checksum::Free::operator()(State* state) const {
  XXH3_freeState(state->xxh3);
  delete state;
}

Checksum::Checksum() : state_(new State) {
  if (state_->xxh3 == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_->xxh3);
}

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH3_64bits_digest(state_->xxh3); }

void Checksum::reset() { XXH3_64bits_reset(state_->xxh3); }

void BlockChecksums::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), block_bytes_ - filled_));
    current_.add(part);
    filled_ += part.size();
    bytes = bytes.subspan(part.size());
    if (filled_ < block_bytes_) continue;
    blocks_.push_back(current_.value());
    current_.reset();
    filled_ = 0;
  }
}

std::vector<std::uint64_t> BlockChecksums::finish() {
  if (filled_ > 0) blocks_.push_back(current_.value());
  return std::move(blocks_);
}

std::uint64_t checksum_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  static const SumUpAll sum = fastest_sum();
  return sum(bytes.data(), bytes.size());
}

std::string to_hex(std::uint64_t value) {
  std::string text(kDigits, '0');
  for (std::size_t at = kDigits; at-- > 0; value >>= 4) text[at] = "0123456789abcdef"[value & 15];
  return text;
}

std::optional<std::uint64_t> from_hex(std::string_view text) {
  if (text.size() != kDigits) return std::nullopt;
  if (text.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace accelerant::checkpoint
