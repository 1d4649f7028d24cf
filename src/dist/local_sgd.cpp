#include "accelerant/dist/local_sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/dist/world.h"
#include "dist/exchange.h"
#include "dist/groups.h"

namespace accelerant::dist {
namespace {

constexpr size_t kMostBytesAtOnce = size_t{256} << 20;

// Tensors that travel as one.
struct Parcel {
  std::vector<at::Tensor> tensors;
  size_t bytes = 0;

  bool takes(const at::Tensor& tensor) const {
    const at::Tensor& first = tensors.front();
    return first.scalar_type() == tensor.scalar_type() && first.device() == tensor.device() &&
           bytes + tensor.nbytes() <= kMostBytesAtOnce;
  }
};

// The same on all processes, as it depends on nothing but the tensors' types and sizes.
std::vector<Parcel> pack(const std::vector<at::Tensor>& tensors) {
  std::vector<Parcel> parcels;
  for (const at::Tensor& tensor : tensors) {
    auto parcel = std::find_if(parcels.begin(), parcels.end(),
                               [&](const Parcel& other) { return other.takes(tensor); });
    if (parcel == parcels.end()) parcel = parcels.insert(parcel, Parcel{});
    parcel->tensors.push_back(tensor);
    parcel->bytes += tensor.nbytes();
  }
  return parcels;
}

at::Tensor flatten(const Parcel& parcel) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : parcel.tensors) flat.push_back(tensor.reshape(-1));
  const at::Tensor all = at::cat(flat);
  const bool is_16_bit = all.scalar_type() == c10::kHalf || all.scalar_type() == c10::kBFloat16;
  return is_16_bit ? all.to(c10::kFloat) : all;
}

}  // namespace

void average_parameters(const World& world, const std::vector<at::Tensor>& parameters) {
  if (!world.environment().use_distributed()) return;
  const at::NoGradGuard no_grad;
  for (const Parcel& parcel : pack(parameters)) {
    const at::Tensor flat = flatten(parcel);
    if (flat.numel() == 0) continue;  // Gloo fails on exchanges of nothing
    exchange(world, "averaging parameters", [&](Groups& groups) {
      std::vector<at::Tensor> tensors = {flat};
      groups.data->allreduce(tensors)->wait();
    });
    flat.div_(world.size());
    int64_t begin = 0;
    for (const at::Tensor& tensor : parcel.tensors) {
      tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

LocalSgd::LocalSgd(std::shared_ptr<World> world, std::vector<at::Tensor> parameters,
                   const LocalSgdOptions& options, const StopExchange& stop_exchange)
    : world_(std::move(world)),
      parameters_(std::move(parameters)),
      steps_(options.steps),
      is_active_(options.enabled && world_ && world_->environment().use_distributed()),
      exceptions_at_entry_(std::uncaught_exceptions()) {
  if (steps_ < 1) {
    throw Error(ErrorDetails{.problem = "LocalSgdOptions::steps is out of range",
                             .expected = "at least 1",
                             .got = c10::str(steps_)});
  }
  if (is_active_ && stop_exchange) exchange_stopped_ = stop_exchange();
}

LocalSgd::~LocalSgd() {
  if (std::uncaught_exceptions() > exceptions_at_entry_) return;
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("the last average of LocalSgd failed: ") + error.what());
  }
}

void LocalSgd::step() {
  ++num_steps_;
  if (is_active_ && num_steps_ % steps_ == 0) average_parameters(*world_, parameters_);
}

void LocalSgd::finish() {
  if (!std::exchange(is_active_, false)) return;
  average_parameters(*world_, parameters_);
  exchange_stopped_.reset();
}

}  // namespace accelerant::dist
