#include <accelerant/data/idx.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace idx_test {
namespace {

using accelerant::data::read_idx;

std::string big_endian(uint64_t value, int bytes) {
  std::string result;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    result += static_cast<char>(value >> shift & 0xFFU);
  }
  return result;
}

std::string header(uint8_t type, const std::vector<uint32_t>& sizes) {
  std::string result = big_endian(type, 3) + static_cast<char>(sizes.size());
  for (const uint32_t size : sizes) result += big_endian(size, 4);
  return result;
}

class Idx : public testing::Test {
 protected:
  at::Tensor read(const std::string& content) const {
    return read_idx(folder_.write("file", content));
  }

  // The error for the content, plain and as gzip. It names the file.
  void expect_refusal(const std::string& content, const std::string& problem) const {
    for (const std::string& path :
         {folder_.write("file", content), folder_.write_gzip("packed.gz", content)}) {
      const std::string message = whole_error_of([&] { read_idx(path); });
      EXPECT_TRUE(contains(message, path + ": "));
      EXPECT_TRUE(contains(message, problem));
    }
  }

  TempFolder folder_;
};

TEST_F(Idx, EveryElementTypeIsRead) {
  struct Case {
    uint8_t code;
    std::string data;
    at::Tensor expected;
  };
  const std::vector<Case> cases = {
      {0x08, std::string("\x00\x7F\xFF", 3), torch::tensor({0, 127, 255}, torch::kUInt8)},
      {0x09, std::string("\x00\x7F\xFF", 3), torch::tensor({0, 127, -1}, torch::kInt8)},
      {0x0B, big_endian(1, 2) + big_endian(0x8000, 2) + big_endian(0x1234, 2),
       torch::tensor({1, -32768, 0x1234}, torch::kInt16)},
      {0x0C, big_endian(1, 4) + big_endian(0x80000000, 4) + big_endian(0x12345678, 4),
       torch::tensor({1, -2147483647 - 1, 0x12345678}, torch::kInt32)},
      {0x0D, big_endian(0x3FC00000, 4) + big_endian(0xFF800000, 4) + big_endian(0x00000001, 4),
       torch::tensor({1.5F, -INFINITY, 1e-45F}, torch::kFloat32)},
      {0x0E,
       big_endian(0x3FF8000000000000, 8) + big_endian(0xFFF0000000000000, 8) + big_endian(1, 8),
       torch::tensor({1.5, -double{INFINITY}, 4.94065645841246544e-324}, torch::kFloat64)},
  };
  for (const Case& c : cases) {
    const std::string content = header(c.code, {3}) + c.data;
    for (const std::string& path :
         {folder_.write("file", content), folder_.write_gzip("packed.gz", content)}) {
      const at::Tensor tensor = read_idx(path);
      EXPECT_EQ(tensor.scalar_type(), c.expected.scalar_type());
      EXPECT_TRUE(tensor.equal(c.expected)) << tensor;
    }
  }
}

TEST_F(Idx, AnyNumberOfDimensionsIsRead) {
  EXPECT_EQ(read(header(8, {}) + "\x05").sizes(), at::IntArrayRef{});
  EXPECT_EQ(read(header(8, {}) + "\x05").item<int64_t>(), 5);
  const at::Tensor cube = read(header(8, {2, 3, 4}) + std::string(23, '\0') + "\x07");
  EXPECT_EQ(cube.sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(cube[1][2][3].item<int64_t>(), 7);
  EXPECT_EQ(read(header(8, std::vector<uint32_t>(255, 1)) + "\x05").dim(), 255);
  EXPECT_EQ(read(header(13, {3, 0, 2})).sizes(), at::IntArrayRef({3, 0, 2}));
}

TEST_F(Idx, WhatIsNoIdxFileIsRefused) {
  expect_refusal("P5 28 28",
                 "no IDX file: expected it to begin with two zero bytes, got 80 and 53");
  expect_refusal(header(0x0A, {1}) + "x", "no IDX file: expected one of the element types");
  expect_refusal("", "truncated");
  const std::string missing = folder_.path("missing");
  EXPECT_EQ(whole_error_of([&] { read_idx(missing); }),
            missing + ": cannot be opened: No such file or directory");
  EXPECT_TRUE(contains(whole_error_of([&] { read_idx(folder_.path()); }), "Is a directory"));
}

TEST_F(Idx, MoreOrFewerBytesThanPromisedAreRefused) {
  expect_refusal(header(8, {2, 2}) + "abcde", "more bytes than its sizes [2, 2] need");
  expect_refusal(header(8, {2, 2}) + "abc", "truncated");
  expect_refusal(header(11, {2}) + "abc", "truncated");
}

TEST_F(Idx, AbsurdSizesAreRefusedBeforeMemoryIsTaken) {
  const uint32_t most = 0xFFFFFFFF;
  expect_refusal(header(8, {most}), "truncated");
  expect_refusal(header(14, {most, 0x10000000}), "truncated");
  expect_refusal(header(8, {most, most, most}), "impossible header");
  expect_refusal(header(8, {most, most, most, 0}), "impossible header");
}

TEST_F(Idx, FilesThatGrowPastTheFirstStepAreRead) {
  // 70 MB, of which each element tells its place: more than memory is taken for at once.
  const auto count = static_cast<uint32_t>(70 << 20) / 4;
  std::string content = header(12, {count});
  for (uint32_t i = 0; i < count; ++i) content += big_endian(i, 4);
  const std::string path = folder_.write("large", content);
  run_in_shell("gzip -1 '" + path + "'");
  EXPECT_TRUE(read_idx(path + ".gz").equal(torch::arange(count, torch::kInt32)));
}

TEST_F(Idx, AFileCutAnywhereIsRefused) {
  const std::string plain = header(12, {2, 3}) + std::string(24, 'x');
  const std::string packed = TempFolder::content_of(folder_.write_gzip("packed.gz", plain));
  for (const std::string& content : {plain, packed}) {
    for (std::size_t size = 0; size < content.size(); ++size) {
      EXPECT_TRUE(contains(whole_error_of([&] { read(content.substr(0, size)); }), "truncated"))
          << size;
    }
    EXPECT_EQ(read(content).sizes(), at::IntArrayRef({2, 3}));
  }
}

TEST_F(Idx, GzipMembersFollowOneAnotherAndNothingElse) {
  const std::string head = header(8, {4});
  const std::string first = TempFolder::content_of(folder_.write_gzip("a.gz", head + "ab"));
  const std::string second = TempFolder::content_of(folder_.write_gzip("b.gz", "cd"));
  EXPECT_EQ(read(first + second)[3].item<int64_t>(), 'd');
  for (const std::string garbage : {"x", "xyz", "\x1F", "\x1Fx"}) {
    const std::string message = whole_error_of([&] { read(first + second + garbage); });
    EXPECT_TRUE(contains(message, "more bytes after its gzip data")) << garbage;
  }
}

TEST_F(Idx, ADamagedChecksumIsRefused) {
  std::string packed = TempFolder::content_of(folder_.write_gzip("a.gz", header(8, {2}) + "ab"));
  packed[packed.size() - 8] ^= 1;  // the trailer: checksum, then length
  EXPECT_TRUE(contains(whole_error_of([&] { read(packed); }), "damaged (incorrect data check)"));
  packed[packed.size() - 8] ^= 1;
  packed[packed.size() - 1] ^= 1;
  EXPECT_TRUE(contains(whole_error_of([&] { read(packed); }), "damaged (incorrect length check)"));
}

TEST_F(Idx, APipeIsRead) {
  const std::string pipe = folder_.path("pipe");
  folder_.write("file", header(8, {2}) + "ab");
  run_in_shell("mkfifo '" + pipe + "' && (cat '" + folder_.path("file") + "' > '" + pipe + "' &)");
  EXPECT_EQ(read_idx(pipe)[1].item<int64_t>(), 'b');
}

// Random damage gives an Error or a tensor, never a crash or an endless wait.
TEST_F(Idx, RandomDamageIsSurvived) {
  const uint32_t seed = random_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string plain = header(11, {3, 5}) + std::string(30, 'x');
  const std::string packed = TempFolder::content_of(folder_.write_gzip("packed.gz", plain));
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string content = round % 2 == 0 ? plain : packed;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      content[random() % content.size()] = static_cast<char>(random());
    }
    try {
      const at::Tensor tensor = read(content);
      EXPECT_EQ(tensor.sum().numel(), 1);  // reads all of it
      ++accepted;
    } catch (const accelerant::Error&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 2000);
}

}  // namespace
}  // namespace idx_test
