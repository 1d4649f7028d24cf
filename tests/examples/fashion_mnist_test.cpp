#include "common/fashion_mnist.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "support/expect_error.h"

namespace {

using Bytes = std::string;

Bytes number(uint32_t value) {
  Bytes bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFFU);
  return bytes;
}

// Image i is filled with the value i.
Bytes images_file(uint32_t count) {
  Bytes bytes = number(0x803) + number(count) + number(28) + number(28);
  for (uint32_t i = 0; i < count; ++i) bytes += Bytes(784, static_cast<char>(i));
  return bytes;
}

// Label i is i modulo 10.
Bytes labels_file(uint32_t count) {
  Bytes bytes = number(0x801) + number(count);
  for (uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 10);
  return bytes;
}

uintmax_t size_of(const std::string& file) {
  return static_cast<uintmax_t>(std::ifstream(file, std::ios::binary | std::ios::ate).tellg());
}

class FashionMnistFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "fashion-mnist-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    write("train-images-idx3-ubyte.gz", images_file(12));
    write("train-labels-idx1-ubyte.gz", labels_file(12));
    write("t10k-images-idx3-ubyte.gz", images_file(3));
    write("t10k-labels-idx1-ubyte.gz", labels_file(3));
  }

  void TearDown() override { shell("rm -rf '" + folder_ + "'"); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Not std::filesystem: CUDA builds of libtorch export parts of an older one, and calls end there.
  static void shell(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0); }

  void write(const std::string& name, const Bytes& content) const {
    const std::string plain = path(name).substr(0, path(name).size() - 3);  // without ".gz"
    std::ofstream(plain, std::ios::binary) << content;
    shell("gzip -f '" + plain + "'");
  }

  // Expects an error about `file` with `problem` in it that says how to get the data.
  void expect_refusal(const std::string& file, const std::string& problem) const {
    const std::string message = error_of([&] { examples::load_fashion_mnist(folder_); });
    EXPECT_TRUE(contains(message, path(file)));
    EXPECT_TRUE(contains(message, problem));
    EXPECT_TRUE(contains(message, "apt-get install dataset-fashion-mnist"));
    EXPECT_TRUE(contains(message, "--data DIR"));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }

  std::string folder_;
};

TEST_F(FashionMnistFiles, GoodFilesBecomeTensors) {
  const examples::FashionMnist data = examples::load_fashion_mnist(folder_);
  EXPECT_EQ(data.train.images.sizes(), torch::IntArrayRef({12, 1, 28, 28}));
  EXPECT_EQ(data.train.images.scalar_type(), torch::kUInt8);
  EXPECT_EQ(data.train.labels.scalar_type(), torch::kInt64);
  EXPECT_EQ(data.test.images.size(0), 3);
  EXPECT_TRUE((data.train.images[7] == 7).all().item<bool>());
  EXPECT_EQ(data.train.labels[11].item<int64_t>(), 1);
}

TEST_F(FashionMnistFiles, NormalisedPicturesAreCentredFloats) {
  const torch::Tensor images = torch::tensor({0, 255}, torch::kUInt8);
  const torch::Tensor floats = examples::normalised(images);
  EXPECT_EQ(floats.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(floats[0].item<double>(), -0.2860 / 0.3530, 1e-5);
  EXPECT_NEAR(floats[1].item<double>(), (1 - 0.2860) / 0.3530, 1e-5);
  EXPECT_EQ(images[1].item<int64_t>(), 255);  // the original is as it was
}

TEST_F(FashionMnistFiles, AMissingFolderIsNamed) {
  shell("rm -r '" + folder_ + "'");
  expect_refusal("train-images-idx3-ubyte.gz", "No such file or directory");
}

TEST_F(FashionMnistFiles, AFolderInPlaceOfAFileIsRefused) {
  const std::string labels = path("t10k-labels-idx1-ubyte.gz");
  shell("rm '" + labels + "' && mkdir '" + labels + "'");
  expect_refusal("t10k-labels-idx1-ubyte.gz", "Is a directory");
}

TEST_F(FashionMnistFiles, AWrongMagicNumberIsRefused) {
  write("train-images-idx3-ubyte.gz", labels_file(12));
  expect_refusal("train-images-idx3-ubyte.gz", "magic number should be 2051, is 2049");
  write("train-images-idx3-ubyte.gz", images_file(12));
  write("train-labels-idx1-ubyte.gz", images_file(12));
  expect_refusal("train-labels-idx1-ubyte.gz", "magic number should be 2049, is 2051");
}

TEST_F(FashionMnistFiles, DataThatEndsEarlyIsRefused) {
  write("train-images-idx3-ubyte.gz", images_file(12).substr(0, 5000));
  expect_refusal("train-images-idx3-ubyte.gz", "truncated");
  write("train-images-idx3-ubyte.gz", "\0\0\x08");  // not even a header
  expect_refusal("train-images-idx3-ubyte.gz", "truncated");
}

TEST_F(FashionMnistFiles, AGzipFileCutAnywhereIsRefused) {
  const std::string name = "train-images-idx3-ubyte.gz";
  for (uintmax_t size = size_of(path(name)); size-- > 0;) {
    ASSERT_EQ(truncate(path(name).c_str(), static_cast<off_t>(size)), 0);
    EXPECT_FALSE(error_of([&] { examples::load_fashion_mnist(folder_); }).empty()) << size;
  }
}

TEST_F(FashionMnistFiles, ADamagedChecksumIsRefused) {
  const std::string name = "train-labels-idx1-ubyte.gz";
  std::fstream file(path(name), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-8, std::ios::end);  // the trailer: checksum, then length
  file.write("\xAB\xAD\xBE\xEF", 4);
  file.close();
  expect_refusal(name, "cannot be read");
}

TEST_F(FashionMnistFiles, BytesAfterTheDataAreRefused) {
  write("t10k-images-idx3-ubyte.gz", images_file(3) + "x");
  expect_refusal("t10k-images-idx3-ubyte.gz", "more bytes than its header says");
}

TEST_F(FashionMnistFiles, OtherSizesAreRefused) {
  write("t10k-images-idx3-ubyte.gz", number(0x803) + number(1) + number(32) + number(28));
  expect_refusal("t10k-images-idx3-ubyte.gz", "height should be 28, is 32");
}

TEST_F(FashionMnistFiles, AbsurdCountsAreRefusedBeforeMemoryIsTaken) {
  for (const uint32_t count : {0U, 0xFFFFFFFFU}) {
    write("t10k-images-idx3-ubyte.gz", number(0x803) + number(count) + number(28) + number(28));
    expect_refusal("t10k-images-idx3-ubyte.gz", "count should be 1 to 1000000");
  }
}

TEST_F(FashionMnistFiles, ImagesAndLabelsMustAgree) {
  write("train-labels-idx1-ubyte.gz", labels_file(11));
  expect_refusal("train-labels-idx1-ubyte.gz", "11 labels for 12 images");
}

TEST_F(FashionMnistFiles, LabelsMustBeClasses) {
  write("train-labels-idx1-ubyte.gz", number(0x801) + number(1) + "\x0B");
  expect_refusal("train-labels-idx1-ubyte.gz", "there is a 11");
}

}  // namespace
