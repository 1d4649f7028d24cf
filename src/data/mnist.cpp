#include "accelerant/data/mnist.h"

#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/data/idx.h"
#include "data/describe.h"

namespace accelerant::data {
namespace {

constexpr int64_t side = 28;
constexpr int64_t classes = 10;

std::string find_file(const std::string& folder, const std::string& name) {
  std::string plain = folder + "/" + name;
  return access(plain.c_str(), F_OK) == 0 ? plain : plain + ".gz";
}

// Reads an array of bytes of which all sizes but the first are given.
at::Tensor read_bytes(const std::string& path, const std::vector<int64_t>& item_sizes) {
  at::Tensor tensor = read_idx(path);
  const bool fits = tensor.scalar_type() == at::kByte && tensor.dim() >= 1 &&
                    tensor.sizes().slice(1) == at::IntArrayRef(item_sizes);
  if (!fits) {
    std::string expected = "uint8 [n";
    for (const int64_t size : item_sizes) expected += ", " + std::to_string(size);
    throw Error(ErrorDetails{.problem = path + ": holds the wrong kind of data",
                             .expected = expected + "]",
                             .got = describe(tensor)});
  }
  if (tensor.size(0) == 0) throw Error(path + ": is empty: its header promises no items");
  return tensor;
}

LabelledImages read_pair(const std::string& folder, const std::string& part) {
  const std::string images_path = find_file(folder, part + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folder, part + "-labels-idx1-ubyte");
  const at::Tensor images = read_bytes(images_path, {side, side});
  const at::Tensor labels = read_bytes(labels_path, {});
  if (images.size(0) != labels.size(0)) {
    throw Error(c10::str(labels_path, ": there are ", labels.size(0), " labels for ",
                         images.size(0), " images"));
  }
  if (const auto largest = labels.max().item<int64_t>(); largest >= classes) {
    throw Error(c10::str(labels_path, ": labels should be 0 to 9, there is a ", largest));
  }
  return {.images = images.unsqueeze(1), .labels = labels.to(at::kLong)};
}

}  // namespace

Mnist read_mnist(const std::string& folder) {
  return {.train = read_pair(folder, "train"), .test = read_pair(folder, "t10k")};
}

}  // namespace accelerant::data
