// The readers of the examples' data.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/char_text.h"
#include "common/fashion_mnist.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace readers_test {
namespace {

using examples::CharText;
using examples::load_fashion_mnist;

// The message of the std::runtime_error that f throws.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string number(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFFU);
  return bytes;
}

// Picture i is filled with the value i.
std::string pictures_file(uint32_t count) {
  std::string bytes = number(0x803) + number(count) + number(28) + number(28);
  for (uint32_t i = 0; i < count; ++i) bytes += std::string(784, static_cast<char>(i));
  return bytes;
}

// Label i is i modulo 10.
std::string labels_file(uint32_t count) {
  std::string bytes = number(0x801) + number(count);
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

class FashionMnistFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_.write_gzip("train-images-idx3-ubyte.gz", pictures_file(200));
    folder_.write_gzip("train-labels-idx1-ubyte.gz", labels_file(200));
    folder_.write_gzip("t10k-images-idx3-ubyte.gz", pictures_file(3));
    folder_.write_gzip("t10k-labels-idx1-ubyte.gz", labels_file(3));
  }

  // Expects an error on one line that names the file.
  void expect_refusal(const std::string& file, const std::string& problem) const {
    const std::string message = message_of([&] { load_fashion_mnist(folder_.path()); });
    EXPECT_TRUE(contains(message, folder_.path(file) + ": "));
    EXPECT_TRUE(contains(message, problem));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }

  TempFolder folder_;
};

TEST_F(FashionMnistFiles, BecomeTensors) {
  const auto [train, test] = load_fashion_mnist(folder_.path());
  EXPECT_EQ(train.images.sizes(), torch::IntArrayRef({200, 1, 28, 28}));
  EXPECT_EQ(train.images.scalar_type(), torch::kUInt8);
  EXPECT_TRUE((train.images.flatten(1) == torch::arange(200).unsqueeze(1)).all().item<bool>());
  EXPECT_TRUE(train.labels.equal(torch::arange(200) % 10));
  EXPECT_EQ(test.images.sizes(), torch::IntArrayRef({3, 1, 28, 28}));
  EXPECT_TRUE(test.labels.equal(torch::arange(3)));
}

TEST_F(FashionMnistFiles, MissingOnesAreNamedAndWhatToInstall) {
  run_in_shell("rm '" + folder_.path("t10k-labels-idx1-ubyte.gz") + "'");
  expect_refusal("t10k-labels-idx1-ubyte.gz", "No such file or directory");
  expect_refusal("t10k-labels-idx1-ubyte.gz", "sudo apt-get install dataset-fashion-mnist");
}

TEST_F(FashionMnistFiles, AreRefusedWhenDataAreMissingOrTooMany) {
  const std::string name = "train-images-idx3-ubyte.gz";
  folder_.write_gzip(name, pictures_file(200).substr(0, 5000));
  expect_refusal(name, "truncated or too long: expected 156800 bytes of data, got 4984");
  folder_.write_gzip(name, pictures_file(200) + "x");
  expect_refusal(name, "got 156801");
  folder_.write_gzip(name, number(0x803) + number(0xFFFFFFFF) + number(28) + number(28));
  expect_refusal(name, "got 0");
  folder_.write_gzip(name, std::string("\0\0\x08", 3));
  expect_refusal(name, "truncated");
}

TEST_F(FashionMnistFiles, AreRefusedWhenGzipsDataAreCutOffOrDamaged) {
  const std::string name = "t10k-images-idx3-ubyte.gz";
  const std::string packed = TempFolder::content_of(folder_.path(name));
  for (std::size_t size = 0; size < packed.size(); ++size) {
    folder_.write(name, packed.substr(0, size));
    expect_refusal(name, "");
  }
  std::string damaged = packed;
  damaged[packed.size() - 8] ^= 1;  // the trailer: checksum, then length
  folder_.write(name, damaged);
  expect_refusal(name, "incorrect data check");
}

TEST_F(FashionMnistFiles, AreRefusedWhenTheyAreSomethingElse) {
  const std::string name = "train-labels-idx1-ubyte.gz";
  folder_.write_gzip(name, pictures_file(200));
  expect_refusal(name, "wrong magic number: expected 2049, got 2051");
  folder_.write(name, "<html>404 Not Found</html>");
  expect_refusal(name, "wrong magic number");
  folder_.write_gzip(name, labels_file(199));
  expect_refusal(name, "199 labels for 200 pictures");
  folder_.write_gzip("train-images-idx3-ubyte.gz",
                     number(0x803) + number(1) + number(32) + number(28) + std::string(896, 'x'));
  expect_refusal("train-images-idx3-ubyte.gz", "not 28 x 28");
}

TEST(Normalised, PicturesAreCentredFloats) {
  const torch::Tensor images = torch::tensor({0, 255}, torch::kUInt8);
  const torch::Tensor floats = examples::normalised(images);
  EXPECT_EQ(floats.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(floats[0].item<double>(), -0.2860 / 0.3530, 1e-5);
  EXPECT_NEAR(floats[1].item<double>(), (1 - 0.2860) / 0.3530, 1e-5);
  EXPECT_EQ(images[1].item<int64_t>(), 255);  // the original is as it was
}

TEST(CharText, CharactersBecomeNumbersAndBack) {
  const TempFolder folder;
  const CharText text(folder.write("text", "cab\nba"));
  EXPECT_EQ(text.symbols(), 4);
  EXPECT_TRUE(text.tokens().equal(torch::tensor({3, 1, 2, 0, 2, 1}, torch::kInt64)));
  EXPECT_EQ(text.token('c'), 3);
  EXPECT_EQ(text.token('x'), -1);
  EXPECT_EQ(text.decode(text.tokens()), "cab\nba");
  EXPECT_EQ(text.decode(torch::tensor({{3, 1}, {2, 0}}).t()), "cba\n");
}

TEST(CharText, AnyBytesAreRead) {
  const TempFolder folder;
  std::string all;
  for (int c = 255; c >= 0; --c) all += static_cast<char>(c);
  const CharText text(folder.write("text", all));
  EXPECT_EQ(text.symbols(), 256);
  EXPECT_EQ(text.decode(text.tokens()), all);
}

TEST(CharText, AMissingFileIsNamed) {
  const TempFolder folder;
  const std::string path = folder.path("missing");
  EXPECT_EQ(message_of([&] { CharText{path}; }),
            path + ": cannot be opened: No such file or directory");
}

}  // namespace
}  // namespace readers_test
