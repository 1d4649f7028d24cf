// Replays small functions: operations on nested data, the search for a batch size, seeds. A
// document is one call: {"op": name, arguments}.
//
//   slice {data, begin, end}, concatenate {batches}, find_batch_size {data}:  data is an object of
//       lists of one-dimensional tensors
//   pad {rows, multiple, fill}:  a tensor of the given rows; the result has the rows and the values
//   batch_sizes {starting_batch_size, fits}:  the sizes that are tried until one is at most `fits`
//   seed {seed, device_specific, process_index}:  random numbers drawn after seeding
#include <accelerant/accelerant.h>

#include <map>
#include <string>
#include <vector>

#include "refusal.h"
#include "topics.h"
#include "values.h"

// Named, because several topics may be compiled as one file.
namespace replay::utilities {

using nlohmann::json;
using Batch = std::map<std::string, std::vector<at::Tensor>>;

Batch batch_from(const json& data) {
  Batch batch;
  for (const auto& [key, list] : data.items()) {
    batch[key];
    for (const json& values : list) batch[key].push_back(tensor_from(values, at::kDouble));
  }
  return batch;
}

json batch_to(const Batch& batch) {
  json data = json::object();
  for (const auto& [key, list] : batch) {
    data[key] = json::array();
    for (const at::Tensor& tensor : list) data[key].push_back(tensor_to(tensor));
  }
  return data;
}

json slice(const json& call) {
  return {{"data", batch_to(accelerant::slice_tensors(batch_from(call.at("data")),
                                                      call.at("begin").get<int64_t>(),
                                                      call.at("end").get<int64_t>()))}};
}

json concatenate(const json& call) {
  std::vector<Batch> batches;
  for (const json& data : call.at("batches")) batches.push_back(batch_from(data));
  return {{"data", batch_to(accelerant::concatenate(batches))}};
}

json find_batch_size(const json& call) {
  return {{"rows", accelerant::find_batch_size(batch_from(call.at("data")))}};
}

json pad(const json& call) {
  using Fill = accelerant::PadInputOptions::Fill;
  const at::Tensor rows = torch::arange(1, call.at("rows").get<int64_t>() + 1, at::kDouble);
  const Fill fill = call.at("fill") == "zeros" ? Fill::zeros : Fill::first_rows;
  const at::Tensor padded =
      accelerant::pad_input_tensors(rows, call.at("multiple").get<int64_t>(), {.fill = fill});
  return {{"values", tensor_to(padded)}};
}

json batch_sizes(const json& call) {
  json tried = json::array();
  const auto quiet = accelerant::set_log_handler([](accelerant::LogLevel, std::string_view) {});
  const json found = result_or_error([&] {
    return json(accelerant::find_executable_batch_size(
        [&](int64_t batch_size) {
          tried.push_back(batch_size);
          if (batch_size > call.at("fits").get<int64_t>()) {
            TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory.");
          }
          return batch_size;
        },
        {.starting_batch_size = call.at("starting_batch_size").get<int64_t>()}));
  });
  accelerant::set_log_handler(quiet);
  return {{"tried", tried}, {"found", found}};
}

json seed(const json& call) {
  accelerant::set_seed(call.at("seed").get<uint64_t>(),
                       {.device_specific = call.value("device_specific", false),
                        .process_index = call.value("process_index", int64_t{0})});
  return {{"values", tensor_to(torch::randn({8}, at::kDouble))}};
}

}  // namespace replay::utilities

namespace replay {

nlohmann::json replay_utilities(const nlohmann::json& document) {
  static const std::map<std::string, nlohmann::json (*)(const nlohmann::json&)> calls = {
      {"batch_sizes", utilities::batch_sizes},
      {"concatenate", utilities::concatenate},
      {"find_batch_size", utilities::find_batch_size},
      {"pad", utilities::pad},
      {"seed", utilities::seed},
      {"slice", utilities::slice},
  };
  const auto known = calls.find(document.at("op").get<std::string>());
  if (known == calls.end()) throw BadDocument("unknown op: " + document.at("op").dump());
  return result_or_error([&] { return known->second(document); });
}

}  // namespace replay
