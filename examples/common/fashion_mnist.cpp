#include "common/fashion_mnist.h"

#include <ATen/ops/empty.h>
#include <accelerant/core/error.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

namespace examples {
namespace {

constexpr uint32_t images_magic = 0x00000803;  // unsigned bytes in three dimensions
constexpr uint32_t labels_magic = 0x00000801;  // unsigned bytes in one dimension
constexpr int64_t side = 28;
constexpr int64_t classes = 10;

// The data set has 70 000 pictures; a header that promises far more is damaged, and believing it
// would only fill the memory.
constexpr uint32_t max_count = 1'000'000;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw accelerant::Error(
      "Fashion-MNIST: " + path + ": " + what +
      "; get the data with `sudo apt-get install dataset-fashion-mnist` or name its folder with "
      "`--data DIR`");
}

// One gzip file with big-endian numbers, read from start to end.
class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path), file_(open(path), &gzclose) {
    if (!file_) fail(path_, std::string("cannot be opened: ") + std::strerror(errno));
  }

  const std::string& path() const { return path_; }

  void read(void* target, std::size_t size) {
    const int got = gzread(file_.get(), target, static_cast<unsigned>(size));
    if (got < 0) fail(path_, "cannot be read: " + reason());
    if (static_cast<std::size_t>(got) < size) fail(path_, "is truncated");
  }

  uint32_t read_number() {
    std::array<uint8_t, 4> bytes{};
    read(bytes.data(), bytes.size());
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void expect_number(uint32_t expected, const std::string& name) {
    const uint32_t got = read_number();
    if (got == expected) return;
    fail(path_, name + " should be " + std::to_string(expected) + ", is " + std::to_string(got));
  }

  uint32_t read_count() {
    const uint32_t count = read_number();
    if (count >= 1 && count <= max_count) return count;
    fail(path_,
         "the count should be 1 to " + std::to_string(max_count) + ", is " + std::to_string(count));
  }

  // Reading on past the data also makes zlib check the checksum at the end.
  void expect_end() {
    char byte = 0;
    const int got = gzread(file_.get(), &byte, 1);
    if (got > 0) fail(path_, "has more bytes than its header says");
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (code == Z_BUF_ERROR) fail(path_, "is truncated");
    if (got < 0) fail(path_, "cannot be read: " + reason());
  }

 private:
  static gzFile open(const std::string& path) {
    errno = 0;  // zlib leaves it alone when memory is short
    return gzopen(path.c_str(), "rb");
  }

  std::string reason() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    return code == Z_ERRNO ? std::strerror(errno) : text;
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

at::Tensor read_images(const std::string& path) {
  IdxFile file(path);
  file.expect_number(images_magic, "the magic number");
  const int64_t count = file.read_count();
  file.expect_number(side, "the height");
  file.expect_number(side, "the width");
  at::Tensor images = at::empty({count, 1, side, side}, at::kByte);
  file.read(images.data_ptr<uint8_t>(), images.nbytes());
  file.expect_end();
  return images;
}

at::Tensor read_labels(const std::string& path) {
  IdxFile file(path);
  file.expect_number(labels_magic, "the magic number");
  const int64_t count = file.read_count();
  at::Tensor labels = at::empty({count}, at::kByte);
  file.read(labels.data_ptr<uint8_t>(), labels.nbytes());
  file.expect_end();
  if (const int64_t largest = labels.max().item<int64_t>(); largest >= classes) {
    fail(path, "labels should be 0 to 9, there is a " + std::to_string(largest));
  }
  return labels.to(at::kLong);
}

LabelledImages read_pair(const std::string& folder, const std::string& part) {
  const std::string labels_path = folder + "/" + part + "-labels-idx1-ubyte.gz";
  LabelledImages pair{.images = read_images(folder + "/" + part + "-images-idx3-ubyte.gz"),
                      .labels = read_labels(labels_path)};
  if (pair.images.size(0) != pair.labels.size(0)) {
    fail(labels_path, "there are " + std::to_string(pair.labels.size(0)) + " labels for " +
                          std::to_string(pair.images.size(0)) + " images");
  }
  return pair;
}

}  // namespace

FashionMnist load_fashion_mnist(const std::string& folder) {
  return {.train = read_pair(folder, "train"), .test = read_pair(folder, "t10k")};
}

at::Tensor normalised(const at::Tensor& images) {
  // Mean and standard deviation of all pixels of the training set, where white is 1.
  constexpr double mean = 0.2860;
  constexpr double deviation = 0.3530;
  return images.to(at::kFloat).div_(255).sub_(mean).div_(deviation);
}

}  // namespace examples
