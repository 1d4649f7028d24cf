#include "tensor/random_state.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <c10/util/StringUtil.h>

#include <charconv>
#include <mutex>
#include <optional>

#include "accelerant/core/error.h"
#include "compat/device.h"

namespace accelerant {
namespace {

constexpr std::string_view kCudaPrefix = "cuda.";

c10::DeviceIndex cuda_devices() {
  if (!compat::is_present(c10::DeviceType::CUDA)) return 0;
  return static_cast<c10::DeviceIndex>(
      c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount());
}

std::optional<c10::Device> device_named(const std::string& name) {
  if (name == "cpu") return c10::Device(c10::DeviceType::CPU);
  if (!name.starts_with(kCudaPrefix)) return std::nullopt;
  const char* const begin = name.data() + kCudaPrefix.size();
  const char* const end = name.data() + name.size();
  c10::DeviceIndex index = 0;
  const auto [rest, error] = std::from_chars(begin, end, index);
  if (error != std::errc() || rest != end || index < 0) return std::nullopt;
  return c10::Device(c10::DeviceType::CUDA, index);
}

at::Tensor state_of(const c10::Device& device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

// A generator accepts only states of its own kind, and reports others only by an exception.
void check(const at::Generator& generator, const std::string& name, const at::Tensor& state) {
  std::string reason = "no tensor";
  try {
    at::Generator trial = generator.clone();
    if (state.defined()) return trial.set_state(state);
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  }
  throw Error(ErrorDetails{
      .problem = c10::str("The random state '", name, "' cannot be restored"),
      .expected = "a tensor of bytes on the CPU, captured from a generator of this kind",
      .got = reason});
}

}  // namespace

RandomState RandomState::capture() {
  RandomState state;
  state.tensors.insert("cpu", state_of(c10::Device(c10::DeviceType::CPU)));
  for (c10::DeviceIndex i = 0; i < cuda_devices(); ++i) {
    state.tensors.insert(c10::str(kCudaPrefix, static_cast<int>(i)),
                         state_of(c10::Device(c10::DeviceType::CUDA, i)));
  }
  return state;
}

std::vector<std::string> RandomState::restore() const {
  std::vector<std::string> skipped;
  std::vector<std::pair<at::Generator, at::Tensor>> found;
  for (const auto& item : tensors) {
    const auto device = device_named(item.key());
    if (!device) {
      throw Error(ErrorDetails{.problem = "A random state has an unknown name",
                               .expected = "'cpu' or 'cuda.<number>'",
                               .got = item.key()});
    }
    if (device->is_cuda() && device->index() >= cuda_devices()) {
      skipped.push_back(item.key());
      continue;
    }
    found.emplace_back(at::globalContext().defaultGenerator(*device), item.value());
    check(found.back().first, item.key(), item.value());
  }
  for (auto& [generator, state] : found) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
  return skipped;
}

}  // namespace accelerant
