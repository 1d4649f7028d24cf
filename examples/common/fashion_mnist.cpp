#include "common/fashion_mnist.h"

#include <ATen/ops/from_blob.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace examples {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw std::runtime_error(path + ": " + problem);
}

std::string unpacked(const std::string& path) {
  const std::unique_ptr<gzFile_s, decltype(&gzclose)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (!file) {
    fail(path, std::string("cannot be opened: ") + std::strerror(errno) +
                   "; get Fashion-MNIST with `sudo apt-get install dataset-fashion-mnist`, or name "
                   "the folder it is in (the demo's `--data DIR`)");
  }
  std::string bytes;
  std::array<char, 1 << 16> piece{};
  int size = 0;
  while ((size = gzread(file.get(), piece.data(), piece.size())) > 0) {
    bytes.append(piece.data(), static_cast<std::size_t>(size));
  }
  // A wrong checksum or truncated data is reported here; the message begins with the path.
  int code = Z_OK;
  const std::string problem = gzerror(file.get(), &code);
  if (code != Z_OK) throw std::runtime_error(problem);
  return bytes;
}

// An IDX file: a magic number, which gives the type of the elements and the number of dimensions,
// then the sizes, then the elements. `item`: the expected sizes after the first, which is the number
// of items.
at::Tensor read_idx(const std::string& path, const std::vector<int64_t>& item) {
  std::string bytes = unpacked(path);
  const std::size_t header = 4 * (2 + item.size());
  if (bytes.size() < header) fail(path, "is truncated");
  const auto number = [&](std::size_t place) {  // big-endian
    int64_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      value = value << 8 | static_cast<uint8_t>(bytes[4 * place + i]);
    }
    return value;
  };
  const int64_t expected = 0x801 + static_cast<int64_t>(item.size());  // 8 stands for bytes
  if (number(0) != expected) {
    fail(path, "begins with the wrong magic number: expected " + std::to_string(expected) +
                   ", got " + std::to_string(number(0)));
  }
  std::vector<int64_t> sizes = {number(1)};
  int64_t elements = number(1);
  for (std::size_t i = 0; i < item.size(); ++i) {
    if (number(2 + i) != item[i]) fail(path, "holds pictures that are not 28 x 28");
    sizes.push_back(item[i]);
    elements *= item[i];
  }
  if (bytes.size() - header != static_cast<std::size_t>(elements)) {
    fail(path, "is truncated or too long: expected " + std::to_string(elements) +
                   " bytes of data, got " + std::to_string(bytes.size() - header));
  }
  return at::from_blob(bytes.data() + header, sizes, at::kByte).clone();
}

LabelledImages read_part(const std::string& prefix) {
  const at::Tensor images = read_idx(prefix + "-images-idx3-ubyte.gz", {28, 28});
  const std::string labels_path = prefix + "-labels-idx1-ubyte.gz";
  const at::Tensor labels = read_idx(labels_path, {});
  if (labels.size(0) != images.size(0)) {
    fail(labels_path, "holds " + std::to_string(labels.size(0)) + " labels for " +
                          std::to_string(images.size(0)) + " pictures");
  }
  return {.images = images.unsqueeze(1), .labels = labels.to(at::kLong)};
}

}  // namespace

FashionMnist load_fashion_mnist(const std::string& folder) {
  return {.train = read_part(folder + "/train"), .test = read_part(folder + "/t10k")};
}

at::Tensor normalised(const at::Tensor& images) {
  // Mean and standard deviation of all pixels of the training set, where white is 1.
  constexpr double mean = 0.2860;
  constexpr double deviation = 0.3530;
  return images.to(at::kFloat).div_(255).sub_(mean).div_(deviation);
}

}  // namespace examples
