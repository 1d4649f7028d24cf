// Fashion-MNIST: 70 000 grey pictures of clothes, 28 x 28, in ten classes, in the file format of
// the original MNIST. Debian has it as the package dataset-fashion-mnist.
#pragma once

#include <accelerant/core/error.h>
#include <accelerant/data/mnist.h>

#include <string>

namespace examples {

// Where the Debian package puts the files.
inline const std::string fashion_mnist_folder = "/usr/share/datasets/fashion-mnist";

// Reads the set; where that fails, the error also tells where to get it.
inline accelerant::data::Mnist load_fashion_mnist(const std::string& folder) {
  try {
    return accelerant::data::read_mnist(folder);
  } catch (const accelerant::Error& error) {
    throw accelerant::Error(std::string("Fashion-MNIST: ") + error.what() +
                            "; get the data with `sudo apt-get install dataset-fashion-mnist`, or "
                            "name the folder it is in "
                            "(the demo's `--data DIR`)");
  }
}

// The pictures as float32 with mean 0 and deviation 1 over the training set.
inline at::Tensor normalised(const at::Tensor& images) {
  // Mean and standard deviation of all pixels of the training set, where white is 1.
  constexpr double mean = 0.2860;
  constexpr double deviation = 0.3530;
  return images.to(at::kFloat).div_(255).sub_(mean).div_(deviation);
}

}  // namespace examples
