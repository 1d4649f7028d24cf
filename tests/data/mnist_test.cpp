#include <accelerant/data/mnist.h>
#include <accelerant/tensor/detail/nesting.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <string>

#include "../examples/common/fashion_mnist.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using accelerant::data::Mnist;
using accelerant::data::read_mnist;
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

class MnistFiles : public testing::Test {
 protected:
  void SetUp() override {
    write("train-images-idx3-ubyte.gz", images_file(12));
    write("train-labels-idx1-ubyte.gz", labels_file(12));
    write("t10k-images-idx3-ubyte.gz", images_file(3));
    write("t10k-labels-idx1-ubyte.gz", labels_file(3));
  }

  void write(const std::string& name, const Bytes& content) const {
    folder_.write_gzip(name, content);
  }

  // Expects an error about `file` with `problem` in it, and that the examples say how to get the data.
  void expect_refusal(const std::string& file, const std::string& problem) const {
    const std::string message = whole_error_of([&] { read_mnist(folder_.path()); });
    EXPECT_TRUE(contains(message, folder_.path(file)));
    EXPECT_TRUE(contains(message, problem));
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_EQ(whole_error_of([&] { examples::load_fashion_mnist(folder_.path()); }),
              "Fashion-MNIST: " + message +
                  "; get the data with `sudo apt-get install dataset-fashion-mnist`, or name the "
                  "folder it is in (the demo's `--data DIR`)");
  }

  TempFolder folder_;
};

TEST_F(MnistFiles, GoodFilesBecomeTensors) {
  const Mnist data = read_mnist(folder_.path());
  EXPECT_EQ(data.train.images.sizes(), torch::IntArrayRef({12, 1, 28, 28}));
  EXPECT_EQ(data.train.images.scalar_type(), torch::kUInt8);
  EXPECT_EQ(data.train.labels.scalar_type(), torch::kInt64);
  EXPECT_EQ(data.test.images.size(0), 3);
  EXPECT_TRUE((data.train.images[7] == 7).all().item<bool>());
  EXPECT_EQ(data.train.labels[11].item<int64_t>(), 1);
}

TEST_F(MnistFiles, NormalisedPicturesAreCentredFloats) {
  const torch::Tensor images = torch::tensor({0, 255}, torch::kUInt8);
  const torch::Tensor floats = examples::normalised(images);
  EXPECT_EQ(floats.scalar_type(), torch::kFloat32);
  EXPECT_NEAR(floats[0].item<double>(), -0.2860 / 0.3530, 1e-5);
  EXPECT_NEAR(floats[1].item<double>(), (1 - 0.2860) / 0.3530, 1e-5);
  EXPECT_EQ(images[1].item<int64_t>(), 255);  // the original is as it was
}

TEST_F(MnistFiles, AMissingFolderIsNamed) {
  run_in_shell("rm -r '" + folder_.path() + "'");
  expect_refusal("train-images-idx3-ubyte.gz", "No such file or directory");
}

TEST_F(MnistFiles, AFolderInPlaceOfAFileIsRefused) {
  const std::string labels = folder_.path("t10k-labels-idx1-ubyte.gz");
  run_in_shell("rm '" + labels + "' && mkdir '" + labels + "'");
  expect_refusal("t10k-labels-idx1-ubyte.gz", "Is a directory");
}

TEST_F(MnistFiles, AWrongMagicNumberIsRefused) {
  write("train-images-idx3-ubyte.gz", labels_file(12));
  expect_refusal("train-images-idx3-ubyte.gz", "expected uint8 [n, 28, 28], got uint8 [12]");
  write("train-images-idx3-ubyte.gz", images_file(12));
  write("train-labels-idx1-ubyte.gz", images_file(12));
  expect_refusal("train-labels-idx1-ubyte.gz", "expected uint8 [n], got uint8 [12, 28, 28]");
}

TEST_F(MnistFiles, DataThatEndsEarlyIsRefused) {
  write("train-images-idx3-ubyte.gz", images_file(12).substr(0, 5000));
  expect_refusal("train-images-idx3-ubyte.gz", "truncated");
  write("train-images-idx3-ubyte.gz", "\0\0\x08");  // not even a header
  expect_refusal("train-images-idx3-ubyte.gz", "truncated");
}

TEST_F(MnistFiles, ADamagedChecksumIsRefused) {
  const std::string name = "train-labels-idx1-ubyte.gz";
  std::fstream file(folder_.path(name), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-8, std::ios::end);  // the trailer: checksum, then length
  file.write("\xAB\xAD\xBE\xEF", 4);
  file.close();
  expect_refusal(name, "cannot be read");
}

TEST_F(MnistFiles, BytesAfterTheDataAreRefused) {
  write("t10k-images-idx3-ubyte.gz", images_file(3) + "x");
  expect_refusal("t10k-images-idx3-ubyte.gz", "more bytes than its sizes [3, 28, 28] need");
}

TEST_F(MnistFiles, OtherSizesAreRefused) {
  write("t10k-images-idx3-ubyte.gz",
        number(0x803) + number(1) + number(32) + number(28) + Bytes(896, 'x'));
  expect_refusal("t10k-images-idx3-ubyte.gz", "expected uint8 [n, 28, 28], got uint8 [1, 32, 28]");
}

TEST_F(MnistFiles, NoPicturesAndTooManyAreRefused) {
  write("t10k-images-idx3-ubyte.gz", number(0x803) + number(0) + number(28) + number(28));
  expect_refusal("t10k-images-idx3-ubyte.gz", "promises no items");
  write("t10k-images-idx3-ubyte.gz", number(0x803) + number(0xFFFFFFFF) + number(28) + number(28));
  expect_refusal("t10k-images-idx3-ubyte.gz", "truncated");
}

TEST_F(MnistFiles, OtherElementTypesAreRefused) {
  write("t10k-labels-idx1-ubyte.gz", number(0x901) + number(3) + "abc");
  expect_refusal("t10k-labels-idx1-ubyte.gz", "expected uint8 [n], got int8 [3]");
}

TEST_F(MnistFiles, PlainFilesAreReadAndWinOverGzip) {
  Bytes labels = labels_file(3);
  labels.back() = 9;
  folder_.write("t10k-labels-idx1-ubyte", labels);
  EXPECT_EQ(read_mnist(folder_.path()).test.labels[2].item<int64_t>(), 9);
}

TEST_F(MnistFiles, AllTensorsAreVisited) {
  int64_t tensors = 0;
  accelerant::visit_tensors(read_mnist(folder_.path()), [&](const at::Tensor&) { ++tensors; });
  EXPECT_EQ(tensors, 4);
}

TEST_F(MnistFiles, ImagesAndLabelsMustAgree) {
  write("train-labels-idx1-ubyte.gz", labels_file(11));
  expect_refusal("train-labels-idx1-ubyte.gz", "11 labels for 12 images");
}

TEST_F(MnistFiles, LabelsMustBeClasses) {
  write("t10k-labels-idx1-ubyte.gz", number(0x801) + number(3) + "\x01\x0B\x02");
  expect_refusal("t10k-labels-idx1-ubyte.gz", "there is a 11");
}

}  // namespace
