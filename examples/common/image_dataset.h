// Pictures and labels as a data set for torch::data's loaders.
#pragma once

#include <torch/torch.h>

#include <utility>

namespace examples {

class ImageDataset : public torch::data::datasets::Dataset<ImageDataset> {
 public:
  // `images` is [n, ...], `labels` is [n].
  ImageDataset(torch::Tensor images, torch::Tensor labels)
      : images_(std::move(images)), labels_(std::move(labels)) {}

  torch::data::Example<> get(size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {images_[row], labels_[row]};
  }

  std::optional<size_t> size() const override { return static_cast<size_t>(images_.size(0)); }

 private:
  torch::Tensor images_;
  torch::Tensor labels_;
};

}  // namespace examples
