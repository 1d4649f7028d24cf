// Reading safetensors files: the header of a million tensors, against a general JSON parser that only
// checks the text, and a tensor of 1 GB in the page cache, against copying memory.
#include <accelerant/format/safetensors_file.h>
#include <accelerant/format/safetensors_writer.h>
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using namespace accelerant::format;

class StringSink final : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

// As the writer orders them, or in an order that must be sorted.
std::string million_tensors(bool in_order) {
  std::vector<TensorToWrite> tensors;
  const std::vector<std::byte> element(4);
  for (int i = 0; i < 1'000'000; ++i) {
    tensors.push_back({.name = "model.layers." + std::to_string(i) + ".weight",
                       .dtype = DType::f32,
                       .shape = {1, 1},
                       .data = element});
  }
  StringSink sink;
  SafetensorsWriter(std::move(tensors)).write(sink);
  if (in_order) return sink.text;
  std::string& text = sink.text;  // the first entry goes last
  std::size_t end = 8;
  std::memcpy(&end, text.data(), 8);
  end = text.find_last_of('}', 8 + end - 1);
  const std::size_t second = text.find("},", 9) + 2;
  const std::string first = "," + text.substr(9, second - 10);
  text.insert(end, first);
  text.erase(9, second - 9);
  return text;
}

void header_of_a_million(benchmark::State& state) {
  const std::string file = million_tensors(state.range(0) != 0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(SafetensorsFile::parse(std::as_bytes(std::span(file))));
  }
}
BENCHMARK(header_of_a_million)->ArgName("in_order")->Arg(1)->Arg(0)->Unit(benchmark::kMillisecond);

void json_of_a_million(benchmark::State& state) {
  const std::string file = million_tensors(true);
  std::size_t length = 0;
  std::memcpy(&length, file.data(), 8);
  for (auto _ : state) {
    if (!nlohmann::json::accept(file.begin() + 8,
                                file.begin() + 8 + static_cast<std::ptrdiff_t>(length))) {
      state.SkipWithError("no JSON");
    }
  }
}
BENCHMARK(json_of_a_million)->Unit(benchmark::kMillisecond);

constexpr std::size_t gigabyte = 1'000'000'000;

// A file of one tensor, gone at the end.
class LargeFile {
 public:
  LargeFile() {
    const std::vector<std::byte> piece(1'000'000, std::byte{1});
    TensorToWrite tensor{.name = "t", .dtype = DType::u8, .shape = {gigabyte}};
    tensor.produce = [&](ByteSink& sink) {
      for (std::size_t i = 0; i < gigabyte; i += piece.size()) sink.write(piece);
    };
    save_safetensors(path, {tensor});
  }
  ~LargeFile() { unlink(path.c_str()); }

  const std::string path = "/tmp/accelerant-bench-" + std::to_string(getpid()) + ".safetensors";
};

void report(benchmark::State& state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(gigabyte) * state.iterations());
}

void copy_memory(benchmark::State& state) {
  const std::vector<std::byte> source(gigabyte, std::byte{1});
  std::vector<std::byte> target(gigabyte);
  for (auto _ : state) {
    std::memcpy(target.data(), source.data(), gigabyte);
    benchmark::ClobberMemory();
  }
  report(state);
}
BENCHMARK(copy_memory)->Unit(benchmark::kMillisecond);

void open_and_read(benchmark::State& state) {
  const LargeFile large;
  std::vector<std::byte> target(gigabyte);
  for (auto _ : state) {
    SafetensorsFile::open(large.path, {.access = FileAccess::read}).read("t", target);
    benchmark::ClobberMemory();
  }
  report(state);
}
BENCHMARK(open_and_read)->Unit(benchmark::kMillisecond);

void open_and_copy_view(benchmark::State& state) {
  const LargeFile large;
  std::vector<std::byte> target(gigabyte);
  for (auto _ : state) {
    const SafetensorsFile file = SafetensorsFile::open(large.path);
    std::memcpy(target.data(), file.view("t").data(), gigabyte);
    benchmark::ClobberMemory();
  }
  report(state);
}
BENCHMARK(open_and_copy_view)->Unit(benchmark::kMillisecond);

void open_and_view(benchmark::State& state) {
  const LargeFile large;
  for (auto _ : state) {
    const SafetensorsFile file = SafetensorsFile::open(large.path);
    benchmark::DoNotOptimize(file.view("t").data());
  }
}
BENCHMARK(open_and_view)->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
