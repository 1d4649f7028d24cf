// The topic `accumulate`: the batches at which gradients synchronise.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include "topics.h"
#include "values.h"

namespace replay {

using nlohmann::json;

json replay_accumulate(const json& document) {
  accelerant::Accelerator accelerator(
      {.cpu = true,
       .gradient_accumulation = {
           .steps = document.at("steps").get<int64_t>(),
           .sync_with_dataloader = document.value("sync_with_dataloader", true),
           .sync_each_batch = document.value("sync_each_batch", false)}});
  torch::nn::Linear net(1, 1);
  const auto model = accelerator.prepare(net);

  json epochs = json::array();
  const json& breaks = document.at("break_after");
  for (const json& length : document.at("epochs")) {
    const json& break_after = breaks.at(epochs.size());
    const auto rows = accelerant::data::tensors(torch::zeros({length.get<int64_t>(), 1}));
    const auto loader = accelerator.prepare(accelerant::data::loader(rows, {.batch_size = 1}));
    json batches = json::array();
    for ([[maybe_unused]] auto&& batch : loader) {
      const auto window = accelerator.accumulate(model);
      batches.push_back({{"sync", accelerator.sync_gradients()}, {"window", window.micro_step()}});
      if (break_after.is_number() && batches.size() == break_after.get<std::size_t>()) break;
    }
    epochs.push_back(std::move(batches));
  }
  return {{"epochs", epochs}};
}

}  // namespace replay
