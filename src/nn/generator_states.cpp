#include "nn/generator_states.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <mutex>

#include "compat/device.h"

namespace accelerant::nn {

GeneratorStates GeneratorStates::capture() {
  GeneratorStates result;
  const auto add = [&](c10::Device device) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    result.states_.emplace_back(generator, generator.get_state());
  };
  add(c10::kCPU);
  if (compat::is_present(c10::kCUDA)) {
    const auto count = c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
    for (c10::DeviceIndex i = 0; i < count; ++i) {
      // Requesting the generator of an unused GPU might initialise it.
      if (at::detail::getCUDAHooks().hasPrimaryContext(i)) add(c10::Device(c10::kCUDA, i));
    }
  }
  return result;
}

void GeneratorStates::restore() const {
  for (const auto& [generator, state] : states_) {
    at::Generator target = generator;
    const std::lock_guard lock(target.mutex());
    target.set_state(state);
  }
}

}  // namespace accelerant::nn
