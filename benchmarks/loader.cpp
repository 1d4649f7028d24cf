// Batches of a data set shaped like Fashion-MNIST: 60000 images of 1 x 28 x 28 bytes, each with a
// label, 64 at a time, shuffled. One iteration is one epoch.
#include <accelerant/accelerant.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <string>
#include <tuple>
#include <vector>

namespace {

namespace data = accelerant::data;

constexpr int64_t kLength = 60'000;
constexpr int64_t kBatch = 64;

struct Tensors {
  at::Tensor images = torch::randint(0, 256, {kLength, 1, 28, 28}, at::kByte);
  at::Tensor labels = torch::randint(0, 10, {kLength}, at::kLong);
};

const Tensors& all() {
  static const Tensors tensors;
  return tensors;
}

// The same, sample by sample.
struct Pictures {
  int64_t size() const { return kLength; }
  std::tuple<at::Tensor, int64_t> get(int64_t index) const {
    return {all().images.select(0, index), labels[index]};
  }
  const int64_t* labels = all().labels.data_ptr<int64_t>();
};

class TorchPictures : public torch::data::datasets::Dataset<TorchPictures> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {all().images.select(0, row), all().labels.select(0, row)};
  }
  std::optional<std::size_t> size() const override { return kLength; }
};

template <class Loader>
void measure(benchmark::State& state, Loader& loader) {
  for (auto _ : state) {
    for (auto& [images, labels] : loader) {
      benchmark::DoNotOptimize(images.unsafeGetTensorImpl());
      benchmark::DoNotOptimize(labels.unsafeGetTensorImpl());
    }
  }
}

template <class D>
void ours(benchmark::State& state, const D& dataset, int64_t workers) {
  auto loader =
      data::loader(dataset, {.batch_size = kBatch, .shuffle = true, .seed = 0, .workers = workers});
  measure(state, loader);
}

void stock_libtorch(benchmark::State& state, std::size_t workers) {
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      TorchPictures().map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions().batch_size(kBatch).workers(workers));
  measure(state, *loader);
}

template <class Run>
void add(const std::string& name, Run run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMillisecond);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("batches_per_iteration",
                              std::to_string((kLength + kBatch - 1) / kBatch));
  for (const int64_t workers : {0, 2}) {
    const std::string tail = ", " + std::to_string(workers) + " workers";
    add("ours, tensors" + tail,
        [=](auto& state) { ours(state, data::tensors(all().images, all().labels), workers); });
    add("ours, sample by sample" + tail, [=](auto& state) { ours(state, Pictures{}, workers); });
    add("torch::data" + tail,
        [=](auto& state) { stock_libtorch(state, static_cast<std::size_t>(workers)); });
  }
  benchmark::RunSpecifiedBenchmarks();
}
