#include "dist/power_memory.h"

#include <nlohmann/json.hpp>

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"

namespace accelerant::dist {
namespace {

using nlohmann::json;

// More than any training needs, and few enough to be drawn again within a minute.
constexpr int64_t kMostDraws = 10'000'000'000;

int64_t number_at(const json& values, const char* key, int64_t most) {
  const json value = values.is_object() ? values.value(key, json()) : json();
  if (value.is_number_integer() && value >= 0 && value <= most) return value.get<int64_t>();
  throw Error(
      ErrorDetails{.problem = "This is not a state of PowerSGD",
                   .expected = c10::str("a number from 0 to ", most, " for '", key, "'"),
                   .got = value.dump(),
                   .hint = "load a state from state_dict() of the same version of the library"});
}

std::string tensor_name(size_t bucket, const char* field) { return c10::str(bucket, ".", field); }

}  // namespace

NamedState state_of(const PowerSgdMemory& memory) {
  NamedState state{.values = json{{"iteration", memory.iteration},
                                  {"random_seed", memory.seeds.seed()},
                                  {"random_draws", memory.seeds.draws()},
                                  {"buckets", json::array()}}};
  for (const auto& [index, bucket] : memory.buckets) {
    state.values["buckets"].push_back(index);
    const auto add = [&state, index = index](const char* field, const at::Tensor& tensor) {
      if (tensor.defined()) state.tensors.insert(tensor_name(index, field), tensor);
    };
    add("error", bucket.error);
    add("q", bucket.q);
    add("q_random", bucket.q_random);
  }
  return state;
}

PowerSgdMemory memory_of(const NamedState& state) {
  const json& values = *state.values;
  const int64_t seed = number_at(values, "random_seed", (int64_t{1} << 32) - 1);
  const int64_t draws = number_at(values, "random_draws", kMostDraws);
  PowerSgdMemory memory(seed);
  memory.seeds = SeedSequence(seed, draws);
  memory.iteration = number_at(values, "iteration", std::numeric_limits<int64_t>::max());
  const auto copy_of = [&](size_t index, const char* field) {
    const at::Tensor* saved = state.tensors.find(tensor_name(index, field));
    return saved == nullptr ? at::Tensor() : saved->detach().clone();
  };
  for (const json& entry : values.value("buckets", json::array())) {
    const auto index = static_cast<size_t>(
        number_at({{"buckets", entry}}, "buckets", std::numeric_limits<int32_t>::max()));
    memory.buckets[index] = {.error = copy_of(index, "error"),
                             .q = copy_of(index, "q"),
                             .q_random = copy_of(index, "q_random")};
  }
  return memory;
}

}  // namespace accelerant::dist
