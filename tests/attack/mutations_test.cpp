// Damaged checkpoints and models. Whatever happens to the newest checkpoint, a training continues
// from it only if that cannot be told from the undamaged one, to the last bit, and otherwise from
// the one before. A model with model.checksums.json is refused in the same way.
//
// ACCELERANT_ATTACK_MUTATIONS says how many are tried, of each.
#include <accelerant/accelerant.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "attack/mutation.h"
#include "support/expect_error.h"
#include "support/parameter_hash.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using accelerant::Error;
using accelerant::StateDict;
using attack::Files;
using attack::Mutation;

int mutations_to_try() {
  const char* const given = std::getenv("ACCELERANT_ATTACK_MUTATIONS");
  if (given == nullptr) return 150;
  const int count = std::atoi(given);
  if (count > 0 && std::to_string(count) == given) return count;
  throw std::invalid_argument(std::string("ACCELERANT_ATTACK_MUTATIONS=") + given +
                              " would try nothing");
}

// Warnings about checkpoints that cannot be used would hide everything else.
class Quiet {
 public:
  Quiet() : before_(accelerant::set_log_handler([](accelerant::LogLevel, std::string_view) {})) {}
  ~Quiet() { accelerant::set_log_handler(before_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  accelerant::LogHandler before_;
};

// --- Checkpoints ---------------------------------------------------------------------------------

struct Counted {
  int64_t calls = 0;

  accelerant::NamedState state_dict() const {
    return {.values = nlohmann::json{{"calls", calls}},
            .tensors = {{"square", torch::full({3}, calls * calls)}}};
  }
  void load_state_dict(const accelerant::NamedState& state) {
    calls = state.values->at("calls").get<int64_t>();
    if (state.tensors["square"][0].item<int64_t>() != calls * calls) throw Error("not a square");
  }
};

// What a checkpoint can hold, in small: 10 kB of weights, a scaler, a schedule, a shuffled loader,
// random numbers, and an object of the program.
class Training {
 public:
  explicit Training(const std::string& project)
      : accelerator_({.cpu = true,
                      .mixed_precision = accelerant::Precision::fp16,
                      .gradient_accumulation = {.steps = 2},
                      .project = {.dir = project, .resume = "auto"},
                      .warnings = accelerant::WarningOptions::none()}) {
    accelerator_.register_for_checkpointing("counted", counted_);
    std::tie(model_, optimizer_, loader_, scheduler_) =
        accelerator_.prepare(net_, adamw_, batches_, cosine_);
  }

  // Makes so many steps in the first epoch, saves after those that are listed, and returns a hash
  // of all that the training knows.
  uint64_t train(int steps, const std::set<int>& saves = {}) {
    uint64_t hash = 0;
    for (const int64_t epoch : accelerator_.epochs(100)) {
      int step = 0;
      for (auto&& [batch] : loader_) {
        hash = 31 * hash + static_cast<uint64_t>(epoch) + step_with(batch);
        if (saves.contains(++step)) accelerator_.save_state();
        if (step == steps) break;
      }
      break;
    }
    optimizer_.sync();
    for (const at::Tensor& parameter : net_->parameters()) {
      hash = 31 * hash + hash_of(parameter);
      if (parameter.grad().defined()) hash = 31 * hash + hash_of(parameter.grad());
      const auto found = adamw_.state().find(parameter.unsafeGetTensorImpl());
      if (found == adamw_.state().end()) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      hash = 31 * hash + hash_of(state.exp_avg());
      hash = 31 * hash + hash_of(state.exp_avg_sq()) + static_cast<uint64_t>(state.step());
    }
    for (const at::Tensor& buffer : net_->buffers()) hash = 31 * hash + hash_of(buffer);
    return hash;
  }

  // The name of the checkpoint that it continues; "nothing" for none.
  std::string resumed() const {
    const auto from = accelerator_.resumed();
    return from ? from->path.substr(from->path.rfind('/') + 1) : "nothing";
  }

 private:
  using Batches = decltype(accelerant::data::loader(accelerant::data::tensors(at::Tensor()),
                                                    accelerant::data::LoaderOptions{}));

  uint64_t step_with(const at::Tensor& batch) {
    const auto window = accelerator_.accumulate(model_);
    const at::Tensor loss = torch::dropout(model_(batch), 0.5, true).square().mean();
    accelerator_.backward(loss);
    optimizer_.step();
    scheduler_.step();
    optimizer_.zero_grad();
    ++counted_.calls;
    const at::Tensor numbers = torch::tensor(
        {loss.item<double>(), scheduler_.get_last_lr()[0], accelerator_.scaler().get_scale(),
         static_cast<double>(counted_.calls), static_cast<double>(loader_.position())},
        torch::kDouble);
    return hash_of(numbers) + hash_of(batch);
  }

  accelerant::Accelerator accelerator_;
  Counted counted_;
  torch::nn::Sequential net_ = made_net();
  torch::optim::AdamW adamw_{net_->parameters(), torch::optim::AdamWOptions(0.01)};
  accelerant::optim::LrScheduler cosine_ =
      accelerant::optim::cosine_with_warmup(adamw_, {.warmup_steps = 2, .total_steps = 100});
  Batches batches_ = accelerant::data::loader(
      accelerant::data::tensors(torch::arange(320, torch::kFloat).view({40, 8}).sin()),
      {.batch_size = 2, .shuffle = true});
  accelerant::Model<torch::nn::Sequential> model_;
  accelerant::Optimizer optimizer_;
  Batches loader_;
  accelerant::Scheduler scheduler_;

  static torch::nn::Sequential made_net() {
    torch::manual_seed(3);
    return torch::nn::Sequential(torch::nn::Linear(8, 128), torch::nn::Tanh(),
                                 torch::nn::BatchNorm1d(128), torch::nn::Linear(128, 8));
  }
};

struct Resumed {
  std::string from = {};
  uint64_t hash = 0;

  bool operator==(const Resumed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Resumed& resumed) {
  return out << resumed.from << ", hash " << resumed.hash;
}

Resumed resume(const std::string& project) {
  Training training(project);
  return {.from = training.resumed(), .hash = training.train(2)};
}

// A path that exists but cannot be looked at is no missing file: the training does not begin.
const std::string kUnknown = "a link to itself instead of manifest.json";

TEST(Mutations, OfTheNewestCheckpoint) {
  const Quiet quiet;
  const TempFolder folder;
  const std::string newest = folder.path("checkpoints/checkpoint_1");
  const std::string before = folder.path("checkpoints/checkpoint_0");
  Training(folder.path()).train(6, {3, 5});  // in the middle of windows of two
  const Files files = attack::files_in(newest);
  const Files others = attack::files_in(before);
  ASSERT_GE(files.size(), 9U);
  const Resumed undamaged = resume(folder.path());
  ASSERT_EQ(undamaged.from, "checkpoint_1");
  ASSERT_EQ(resume(folder.path()), undamaged);
  run_in_shell("mv '" + newest + "' '" + folder.path("aside") + "'");
  const Resumed earlier = resume(folder.path());
  ASSERT_EQ(earlier.from, "checkpoint_0");
  ASSERT_NE(earlier.hash, undamaged.hash);
  run_in_shell("mv '" + folder.path("aside") + "' '" + newest + "'");

  std::mt19937 random(random_seed());
  int harmless = 0;
  const int count = mutations_to_try();
  for (int number = 0; number < count && !HasFailure(); ++number) {
    const Mutation mutation(newest, files, others, random);
    SCOPED_TRACE(std::to_string(number) + ": " + mutation.text());
    if (mutation.text().find(kUnknown) != std::string::npos) {
      const std::string error = whole_error_of([&] { resume(folder.path()); });
      EXPECT_TRUE(contains(error, newest + "/manifest.json cannot be accessed"));
      continue;
    }
    const Resumed found = resume(folder.path());
    if (found.from == "checkpoint_0") {
      EXPECT_EQ(found, earlier);
      continue;
    }
    // White space and the like, where nothing depends on it.
    EXPECT_EQ(found, undamaged);
    EXPECT_EQ(mutation.names(), std::vector<std::string>{"manifest.json"});
    ++harmless;
  }
  EXPECT_EQ(attack::files_in(before), others);
  EXPECT_EQ(resume(folder.path()), undamaged);
  std::cout << count << " mutations of a checkpoint of " << files.size()
            << " files: " << count - harmless << " found, " << harmless
            << " harmless, all of these in the white space of manifest.json\n";
}

// --- Models --------------------------------------------------------------------------------------

StateDict tensors_of_a_model(float shift) {
  StateDict tensors;
  for (const int64_t size : {1, 300, 3000, 900, 5, 1500}) {
    tensors.insert("layer" + std::to_string(size) + ".weight",
                   torch::arange(size, torch::kFloat).add(shift).sin());
  }
  return tensors;
}

uint64_t hash_of_all(const StateDict& tensors) {
  uint64_t hash = 0;
  for (const auto& item : tensors) hash = 31 * hash + hash_of(item.value());
  return hash;
}

// Whether no damaged value got into tensors that began as those of model 7 and were to become those
// of model 0.
bool each_value_is_old_or_new(const StateDict& tensors) {
  const StateDict before = tensors_of_a_model(7);
  const StateDict after = tensors_of_a_model(0);
  bool is_so = true;
  for (const auto& item : tensors) {
    const at::Tensor& value = item.value();
    is_so &= (value.eq(before[item.key()]) | value.eq(after[item.key()])).all().item<bool>();
  }
  return is_so;
}

void mutate_model(const accelerant::SaveModelOptions& options, size_t expected_files) {
  const TempFolder folder;
  const std::string path = folder.path("model");
  accelerant::save_model(tensors_of_a_model(0), path, options);
  accelerant::save_model(tensors_of_a_model(0.5), folder.path("other"), options);
  const Files files = attack::files_in(path);
  const Files others = attack::files_in(folder.path("other"));
  ASSERT_EQ(files.size(), expected_files);
  const std::string list = "model.checksums.json";
  ASSERT_TRUE(files.contains(list));
  const uint64_t undamaged = hash_of_all(tensors_of_a_model(0));

  std::mt19937 random(random_seed());
  int harmless = 0;
  int without_list = 0;
  const int count = mutations_to_try();
  for (int number = 0; number < count && !testing::Test::HasFailure(); ++number) {
    const Mutation mutation(path, files, others, random);
    SCOPED_TRACE(std::to_string(number) + ": " + mutation.text());
    if (mutation.removed(list)) {  // which is how one says that the files are right
      ++without_list;
      continue;
    }
    StateDict target = tensors_of_a_model(7);
    try {
      accelerant::load_checkpoint_in_model(target, path);
    } catch (const Error&) {
      EXPECT_TRUE(each_value_is_old_or_new(target));
      continue;
    }
    EXPECT_EQ(hash_of_all(target), undamaged);
    EXPECT_EQ(mutation.names(), std::vector<std::string>{list});
    ++harmless;
  }
  StateDict target = tensors_of_a_model(7);
  accelerant::load_checkpoint_in_model(target, path);
  EXPECT_EQ(hash_of_all(target), undamaged);
  std::cout << count << " mutations of a model of " << files.size()
            << " files: " << count - harmless - without_list << " found, " << harmless
            << " harmless, all of these in the white space of " << list << "; in " << without_list
            << " that list was removed\n";
}

TEST(Mutations, OfAModel) { mutate_model({}, 2); }
TEST(Mutations, OfAModelInShards) { mutate_model({.max_shard_size = "8KB"}, 5); }
TEST(Mutations, OfAModelOfTorchSave) {
  mutate_model({.max_shard_size = "8KB", .safe_serialization = false}, 5);
}

}  // namespace
