// Reads the four files of MNIST, Fashion-MNIST, KMNIST and other sets made like them.
//
//   auto [train, test] = accelerant::data::read_mnist("/usr/share/datasets/fashion-mnist");
//   at::Tensor pictures = train.images.to(at::kFloat).div_(255);
//
// The tensors own their memory and lie on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace accelerant::data {

struct LabelledImages {
  at::Tensor images;  // uint8 [n, 1, 28, 28], 0 is the background
  at::Tensor labels;  // int64 [n], each 0 to 9

  static void visit_fields(auto& self, auto&& visit) {
    visit(self.images);
    visit(self.labels);
  }
};

struct Mnist {
  LabelledImages train;
  LabelledImages test;

  static void visit_fields(auto& self, auto&& visit) {
    visit(self.train);
    visit(self.test);
  }
};

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
// t10k-labels-idx1-ubyte in `folder`, each plain or, where that is not there, with ".gz" at the end.
// Throws Error that names the file when one is missing or damaged, holds something else than 28 x 28
// pictures or labels 0 to 9, or does not fit the others.
Mnist read_mnist(const std::string& folder);

}  // namespace accelerant::data
