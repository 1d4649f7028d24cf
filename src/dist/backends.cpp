#include "dist/backends.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef ACCELERANT_WITH_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/texts.h"
#include "watch/network.h"

namespace accelerant::dist {
namespace {

using Type = c10d::ProcessGroup::BackendType;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePtr& store, const Environment& environment,
                                            const ProcessGroupOptions& options) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  const GlooEndpoint endpoint = gloo_endpoint(environment, options.interface);
  gloo->devices.push_back(endpoint.is_interface
                              ? c10d::ProcessGroupGloo::createDeviceForInterface(endpoint.name)
                              : c10d::ProcessGroupGloo::createDeviceForHostname(endpoint.name));
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, static_cast<int>(environment.process_index),
      static_cast<int>(environment.num_processes), gloo);
  backend->setSequenceNumberForGroup();
  return backend;
}

#ifdef ACCELERANT_WITH_NCCL
c10::intrusive_ptr<c10d::Backend> make_nccl(const StorePtr& store, const Environment& environment,
                                            const ProcessGroupOptions& options) {
  auto nccl = c10d::ProcessGroupNCCL::Options::create();
  nccl->timeout = options.timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, static_cast<int>(environment.process_index),
      static_cast<int>(environment.num_processes), nccl);
  backend->setSequenceNumberForGroup();
  return backend;
}
#endif

bool chooses_nccl([[maybe_unused]] const Environment& environment,
                  const ProcessGroupOptions& options, c10::Device device) {
  if (!device.is_cuda() || options.backend == Backend::gloo) return false;
#ifdef ACCELERANT_WITH_NCCL
  if (options.backend == Backend::nccl) return true;
  const auto gpus = c10::impl::VirtualGuardImpl(device.type()).deviceCount();
  if (environment.local_num_processes <= gpus) return true;
  log(LogLevel::warning, c10::str(environment.local_num_processes, " processes share ",
                                  counted(static_cast<uint64_t>(gpus), "GPU"),
                                  ", which NCCL does not support: using Gloo instead, which is "
                                  "slow"));
  return false;
#else
  if (options.backend == Backend::automatic) return false;
  throw Error(
      ErrorDetails{.problem = "NCCL was requested, but is not available",
                   .expected = "a build with NCCL, which needs the nccl.h of libtorch's NCCL",
                   .got = "a build without it",
                   .hint = "use Backend::gloo, or install the nvidia-nccl package and "
                           "configure again"});
#endif
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_group(const StorePtr& store, const std::string& name,
                                                  const Environment& environment,
                                                  const ProcessGroupOptions& options,
                                                  c10::Device device) {
  auto own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(own, static_cast<int>(environment.process_index),
                                              static_cast<int>(environment.num_processes));
  const auto gloo =
      make_gloo(c10::make_intrusive<c10d::PrefixStore>("cpu", own), environment, options);
  group->setBackend(c10::DeviceType::CPU, Type::GLOO, gloo);
  group->setDefaultBackend(Type::GLOO);
  if (chooses_nccl(environment, options, device)) {
#ifdef ACCELERANT_WITH_NCCL
    group->setBoundDeviceId(device);
    group->setBackend(
        device.type(), Type::NCCL,
        make_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", own), environment, options));
#endif
  } else if (!device.is_cpu()) {
    group->setBackend(device.type(), Type::GLOO, gloo);
  }
  group->setGroupName(name);
  return group;
}

}  // namespace accelerant::dist
