// Saves and loads models, and opens files with many tensors.
//
//   bench-model-io DEVICE     reads requests and answers each with a line of JSON
//
//   model BLOCKS              makes the weights of BLOCKS blocks of a GPT of width 1024; 21 blocks
//                             are 1.06 GB
//   load PATH                 copies a saved model into these weights; compares its checksums
//   load-unchecked PATH       the same without comparing
//   save FOLDER               saves them to disk
//   memcpy                    copies them with memcpy, in one thread
//   copy_                     copies them as torch does
//   many PATH COUNT           writes a file of COUNT tensors of one element
//   open PATH                 opens such a file: reads and checks its header
//
// model_io.py answers the same requests, and workloads/checkpoint.py queries both in turn.
#include <ATen/ATen.h>
#include <accelerant/checkpoint/models.h>
#include <accelerant/format/safetensors.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using accelerant::StateDict;

StateDict make_model(int blocks, at::Device device) {
  constexpr int64_t kWidth = 1024;
  const std::vector<std::vector<int64_t>> shapes = {
      {kWidth}, {kWidth}, {3 * kWidth, kWidth}, {3 * kWidth}, {kWidth, kWidth},     {kWidth},
      {kWidth}, {kWidth}, {4 * kWidth, kWidth}, {4 * kWidth}, {kWidth, 4 * kWidth}, {kWidth}};
  StateDict model;
  for (int block = 0; block < blocks; ++block) {
    for (const auto& shape : shapes) {
      model.insert("weights." + std::to_string(model.size()),
                   at::randn(shape, at::TensorOptions().device(device)));
    }
  }
  return model;
}

StateDict empty_copy(const StateDict& model) {
  StateDict copy;
  for (const auto& item : model) copy.insert(item.key(), at::zeros_like(item.value()));
  return copy;
}

void copy_memory(const StateDict& from, const StateDict& to) {
  for (const auto& item : from) {
    std::memcpy(to[item.key()].mutable_data_ptr(), item.value().const_data_ptr(),
                item.value().nbytes());
  }
}

void write_many(const std::string& path, int count) {
  const std::vector<std::byte> element(4);
  std::vector<accelerant::format::TensorToWrite> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back({.name = "model.layers." + std::to_string(i) + ".weight",
                       .dtype = accelerant::format::DType::f32,
                       .shape = {1, 1},
                       .data = element});
  }
  accelerant::format::save_safetensors(path, std::move(tensors));
}

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Requests {
 public:
  explicit Requests(at::Device device) : device_(device) {}

  // Returns seconds.
  double answer(const std::string& request) {
    std::istringstream words(request);
    std::string what, path;
    int count = 0;
    words >> what;
    if (what == "model" && words >> count) {
      model_ = make_model(count, device_);
      copy_ = device_.is_cpu() ? empty_copy(model_) : StateDict();
      return 0.0;
    }
    if (what == "memcpy") return seconds_of([&] { copy_memory(model_, copy_); });
    if (what == "copy_") {
      return seconds_of([&] {
        for (const auto& item : model_) copy_[item.key()].copy_(item.value());
      });
    }
    words >> path;
    if (what == "load") {
      return seconds_of([&] { accelerant::load_checkpoint_in_model(model_, path); });
    }
    if (what == "load-unchecked") {
      return seconds_of(
          [&] { accelerant::load_checkpoint_in_model(model_, path, {.checksums = false}); });
    }
    if (what == "save") return seconds_of([&] { accelerant::save_model(model_, path); });
    if (what == "many" && words >> count) return seconds_of([&] { write_many(path, count); });
    if (what == "open") {
      return seconds_of([&] {
        const auto file = accelerant::format::SafetensorsFile::open(path);
        if (file.names().empty()) throw std::runtime_error("no tensors in " + path);
      });
    }
    throw std::invalid_argument("unknown request: " + request);
  }

 private:
  at::Device device_;
  StateDict model_, copy_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::invalid_argument("usage: bench-model-io DEVICE");
    Requests requests{at::Device(argv[1])};
    for (std::string request; std::getline(std::cin, request);) {
      std::cout << "{\"seconds\": " << requests.answer(request) << "}" << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "bench-model-io: " << error.what() << "\n";
    return 2;
  }
}
