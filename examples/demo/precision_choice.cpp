#include "precision_choice.h"

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>

namespace demo {
namespace {

using accelerant::Precision;

constexpr double worth_it = 1.2;  // a 16-bit format must be so many times as fast as float32

// The value of the first line of /proc/cpuinfo with that name; empty if there is none.
std::string cpu_info(const std::string& name) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

// What a CPU calls its instructions for products of bfloat16; empty if it has none.
std::string bf16_instructions() {
  std::istringstream flags(cpu_info("flags") + " " + cpu_info("Features"));  // x86, ARM
  std::string found;
  for (std::string flag; flags >> flag;) {
    if (flag == "amx_bf16") return "AMX-BF16";
    if (flag == "avx512_bf16") found = "AVX512-BF16";
    if (flag == "bf16") found = "BF16";
  }
  return found;
}

at::ScalarType type_of(Precision precision) {
  if (precision == Precision::no) return at::kFloat;
  return precision == Precision::bf16 ? at::kBFloat16 : at::kHalf;
}

// A product such as the network's largest one, timed in one format after the other.
class Product {
 public:
  explicit Product(at::Device device) : device_(device), rows_(device.is_cuda() ? 4096 : 512) {}

  // The least time of several, in milliseconds; infinite if the device cannot do it.
  double milliseconds(Precision precision) const try {
    const auto options = at::TensorOptions(device_).dtype(type_of(precision));
    const auto a = torch::ones({rows_, columns()}, options);
    const auto b = torch::ones({columns(), columns()}, options);
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 8; ++i) {
      const auto start = std::chrono::steady_clock::now();
      a.matmul(b);
      if (device_.is_cuda()) torch::cuda::synchronize();
      const std::chrono::duration<double, std::milli> time =
          std::chrono::steady_clock::now() - start;
      if (i > 0) least = std::min(least, time.count());  // the first one warms up
    }
    return least;
  } catch (const c10::Error&) {
    return std::numeric_limits<double>::infinity();
  }

 private:
  int64_t columns() const { return device_.is_cuda() ? 4096 : 1024; }

  at::Device device_;
  int64_t rows_;
};

std::string milliseconds_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 1 ? "%.2f ms" : "%.1f ms", value);
  return text;
}

}  // namespace

std::string cpu_name() {
  const std::string name = cpu_info("model name");
  return name.empty() ? "CPU" : name;
}

PrecisionChoice choose_precision(at::Device device, std::optional<Precision> wanted) {
  const Product product(device);
  const double fp32 = product.milliseconds(Precision::no);
  const double bf16 = product.milliseconds(Precision::bf16);
  const auto product_takes = [&](const char* format, double time) {
    return "a matrix product takes " + milliseconds_text(time) + " in " + format + ", " +
           milliseconds_text(fp32) + " in float32";
  };

  if (wanted == Precision::no) return {Precision::no, "as --precision asks"};
  if (wanted) {
    const double time = *wanted == Precision::bf16 ? bf16 : product.milliseconds(*wanted);
    return {*wanted, "as --precision asks; " + product_takes("it", time)};
  }

  if (device.is_cuda()) {
    // bfloat16 needs no loss scaling, so float16 has to be clearly faster, as on older GPUs.
    const double fp16 = product.milliseconds(Precision::fp16);
    const auto best = bf16 < worth_it * fp16 ? Precision::bf16 : Precision::fp16;
    const double time = best == Precision::bf16 ? bf16 : fp16;
    if (fp32 < worth_it * time) return {Precision::no, "16 bits are no faster on this GPU"};
    return {best, product_takes("it", time)};
  }
  const std::string instructions = bf16_instructions();
  if (instructions.empty()) {
    return {Precision::no,
            "this CPU has no instructions for bfloat16; " + product_takes("bfloat16", bf16)};
  }
  if (fp32 < worth_it * bf16) {
    return {Precision::no,
            "this CPU has " + instructions + ", but " + product_takes("bfloat16", bf16)};
  }
  return {Precision::bf16, "this CPU has " + instructions + "; " + product_takes("it", bf16)};
}

}  // namespace demo
