// The parts of random numbers that need torch.
#include "data/torch_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>

#include "accelerant/order/sampler.h"

namespace accelerant::data {

at::Generator& Random::generator() {
  if (!generator_) {
    generator_ = std::make_shared<at::Generator>(at::detail::createCPUGenerator((*this)()));
  }
  return *generator_;
}

uint64_t torch_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.current_seed();
}

}  // namespace accelerant::data
