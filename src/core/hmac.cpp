#include "core/hmac.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace accelerant {
namespace {

constexpr std::size_t kBlock = 64;  // bytes

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// What it has hashed may be a key, so it leaves nothing behind.
class Sha256 {
 public:
  Sha256() = default;
  ~Sha256() { ::explicit_bzero(this, sizeof *this); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes) {
    size_ += bytes.size();
    while (!bytes.empty()) {
      const std::size_t count = std::min(bytes.size(), kBlock - filled_);
      std::copy_n(bytes.data(), count, block_.data() + filled_);
      filled_ += count;
      bytes = bytes.subspan(count);
      if (filled_ == kBlock) take_block();
    }
  }

  Digest finish() {
    const uint64_t bits = size_ * 8;
    const std::byte one{0x80};
    add({&one, 1});
    constexpr std::byte zero{0};
    while (filled_ != kBlock - 8) add({&zero, 1});
    for (std::size_t i = 0; i < 8; ++i) {
      block_[filled_++] = static_cast<std::byte>(bits >> (56 - 8 * i));
    }
    take_block();
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i) {
      digest[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return digest;
  }

 private:
  void take_block() {
    filled_ = 0;
    auto& w = words_;
    for (std::size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (std::size_t j = 0; j < 4; ++j) {
        w[i] = (w[i] << 8) | std::to_integer<uint32_t>(block_[4 * i + j]);
      }
    }
    using std::rotr;
    for (std::size_t i = 16; i < w.size(); ++i) {
      const uint32_t early = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t late = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + early + w[i - 7] + late;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const uint32_t choice = (e & f) ^ (~e & g);
      const uint32_t one =
          h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + choice + kRoundConstants[i] + w[i];
      const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
      const uint32_t two = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + majority;
      h = g;
      g = f;
      f = e;
      e = d + one;
      d = c;
      c = b;
      b = a;
      a = one + two;
    }
    const std::array<uint32_t, 8> change = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += change[i];
  }

  // The first 32 bits of the fractional parts of the square roots of the first 8 primes.
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> block_ = {};
  std::array<uint32_t, 64> words_ = {};
  std::size_t filled_ = 0;
  uint64_t size_ = 0;
};

}  // namespace

Digest sha256(std::span<const std::byte> message) {
  Sha256 hash;
  hash.add(message);
  return hash.finish();
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  std::array<std::byte, kBlock> pad = {};
  if (key.size() > pad.size()) {
    Digest short_key = sha256(key);
    std::ranges::copy(short_key, pad.begin());
    ::explicit_bzero(short_key.data(), short_key.size());
  } else {
    std::ranges::copy(key, pad.begin());
  }
  for (std::byte& byte : pad) byte ^= std::byte{0x36};
  Sha256 inner;
  inner.add(pad);
  inner.add(message);
  for (std::byte& byte : pad) byte ^= std::byte{0x36} ^ std::byte{0x5c};
  Sha256 outer;
  outer.add(pad);
  ::explicit_bzero(pad.data(), pad.size());
  outer.add(inner.finish());
  return outer.finish();
}

bool equal_in_constant_time(std::span<const std::byte> one, std::span<const std::byte> other) {
  if (one.size() != other.size()) return false;
  // volatile: the compiler must not stop at the first difference.
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    difference = difference | std::to_integer<unsigned char>(one[i] ^ other[i]);
  }
  return difference == 0;
}

}  // namespace accelerant
