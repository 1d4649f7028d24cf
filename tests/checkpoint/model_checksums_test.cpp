// Models with and without checksums, and files that describe more than they hold, through the
// public functions.
#include <accelerant/checkpoint/models.h>
#include <accelerant/paging/empty_weights.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "core/atomic_file.h"
#include "core/files.h"
#include "format/torch_archive.h"
#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/random_seed.h"
#include "support/same_module.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace {

using accelerant::entries_of;
using accelerant::load_checkpoint_in_model;
using accelerant::load_tensors;
using accelerant::save;
using accelerant::save_model;
using accelerant::StateDict;
namespace format = accelerant::format;
namespace nn = torch::nn;

using Names = std::vector<std::string>;

constexpr const char* kList = "model.checksums.json";

nn::Sequential net_of_layers() {
  return nn::Sequential(nn::Linear(3, 50), nn::BatchNorm1d(50), nn::Linear(50, 20));
}

void flip_byte(const std::string& path, std::size_t at) {
  std::string content = TempFolder::content_of(path);
  content.at(at) = static_cast<char>(content[at] ^ 0x10);
  std::ofstream(path, std::ios::binary) << content;
}

TEST(ModelWithChecksums, IsWrittenAndRewritten) {
  const TempFolder folder;
  auto net = net_of_layers();
  folder.write("config.json", "{}");
  const auto saved = save_model(net, folder.path(), {.max_shard_size = "2KB", .checksums = true});
  EXPECT_EQ(std::count(saved.files.begin(), saved.files.end(), kList), 0);
  EXPECT_EQ(entries_of(folder.path()).size(), saved.files.size() + 2);
  auto other = net_of_layers();
  load_checkpoint_in_model(other, folder.path());
  expect_same_module(*other, *net);
  save_model(net, folder.path(), {.safe_serialization = false, .checksums = true});
  EXPECT_EQ(entries_of(folder.path()), (Names{"config.json", kList, "pytorch_model.bin"}));
  load_checkpoint_in_model(other, folder.path());
  save_model(net, folder.path(), {.checksums = false});
  EXPECT_EQ(entries_of(folder.path()), (Names{"config.json", "model.safetensors"}));
}

// The model does not use the damaged tensor.
TEST(ModelWithChecksums, DamageInUnusedTensorsIsFoundUnlessWeightsStayInTheFile) {
  const TempFolder folder;
  const auto large_net = [] { return nn::Sequential(nn::Linear(512, 512)); };
  StateDict state;
  for (const auto& item : large_net()->named_parameters()) {
    state.insert(item.key(), item.value().detach());
  }
  state.insert("unused", torch::zeros({1 << 20}));  // has blocks of its own
  save_model(state, folder.path());
  const std::string path = folder.path("model.safetensors");
  const std::size_t unused = TempFolder::content_of(path).find(std::string(3 << 20, '\0'));
  flip_byte(path, unused + (2 << 20));
  const auto load = [&](const std::string& place) {
    const auto net = accelerant::init_empty_weights(large_net);
    accelerant::load_checkpoint_and_dispatch(net, folder.path(), {.device_map = {{"", place}}});
  };
  EXPECT_TRUE(contains(whole_error_of([&] { load("cpu"); }), "is damaged in bytes"));
  EXPECT_NO_THROW(load("disk"));
}

TEST(ModelWithChecksums, DamageIsAnErrorBeforeAnythingChanges) {
  const TempFolder folder;
  auto net = net_of_layers();
  save_model(net, folder.path(), {.checksums = true});
  const std::string path = folder.path("model.safetensors");
  flip_byte(path, TempFolder::content_of(path).size() - 10);
  auto other = net_of_layers();
  const auto before = other->parameters()[0].clone();
  for (const std::string& given : {folder.path(), path}) {
    const std::string error = whole_error_of([&] { load_checkpoint_in_model(other, given); });
    for (const char* part :
         {"model.safetensors is damaged in bytes 0 to", "the header, tensor", "remove", kList}) {
      EXPECT_TRUE(contains(error, part));
    }
  }
  EXPECT_TRUE(contains(whole_error_of([&] { load_tensors(path); }), "is damaged in bytes"));
  EXPECT_TRUE(torch::equal(other->parameters()[0], before));
  EXPECT_NO_THROW(load_checkpoint_in_model(other, folder.path(), {.checksums = false}));
  EXPECT_NO_THROW(load_tensors(path, {.checksums = false}));
}

TEST(ModelWithChecksums, EveryMutationIsNoticedAndWithoutThemAsBefore) {
  std::mt19937 generator(random_seed());
  for (const bool safe : {true, false}) {
    const TempFolder folder;
    save_model(net_of_layers(), folder.path(),
               {.max_shard_size = "2KB", .safe_serialization = safe, .checksums = true});
    int unnoticed = 0;
    for (const std::string& name : entries_of(folder.path())) {
      const std::string path = folder.path(name);
      const std::string content = TempFolder::content_of(path);
      for (int i = 0; i < 40; ++i) {
        const std::size_t at = generator() % (content.size() - 1);
        if (i % 4 == 0) {
          folder.write(name, content.substr(0, at));
        } else {
          flip_byte(path, at);
        }
        auto net = net_of_layers();
        EXPECT_TRUE(
            contains(whole_error_of([&] { load_checkpoint_in_model(net, folder.path()); }), path))
            << at;
        try {
          load_checkpoint_in_model(net, folder.path(), {.checksums = false});
          unnoticed += static_cast<int>(name != kList);
        } catch (const accelerant::Error&) {
        }
        folder.write(name, content);
      }
    }
    std::cout << unnoticed << " were not noticed without checksums\n";
    if (safe) {
      EXPECT_GT(unnoticed, 20);
    }
  }
}

TEST(ModelWithChecksums, SavingATensorOverAListedFileTakesItOffTheList) {
  const TempFolder folder;
  save_model(net_of_layers(), folder.path(), {.checksums = true});
  save(torch::ones({3}), folder.path("model.safetensors"));
  EXPECT_EQ(entries_of(folder.path()), Names{"model.safetensors"});
  save_model(net_of_layers(), folder.path(), {.safe_serialization = false, .checksums = true});
  StateDict state;
  state.insert("x", torch::ones({3}));
  save(state, folder.path("pytorch_model.bin"), {.safe_serialization = false});
  EXPECT_TRUE(torch::equal(load_tensors(folder.path("pytorch_model.bin"))["x"], state["x"]));
}

// --- Compared while loading -----------------------------------------------------------------------

// How a target differs from what is stored.
enum class Target { as_stored, converted, strided };

class CheckedLoading : public OnDevice {
 protected:
  // Several blocks in all, many tensors in one of them, and one that needs several transfers.
  static StateDict large_state() {
    StateDict state;
    const auto add = [&](int64_t rows, int64_t columns) {
      state.insert("t" + std::to_string(state.size()), torch::randn({rows, columns}));
    };
    for (int64_t i = 0; i < 30; ++i) add(1 + i, 7);
    add(1001, 1003);
    for (int64_t i = 0; i < 30; ++i) add(30 - i, 11);
    add(3001, 3003);
    return state;
  }

  StateDict targets_for(const StateDict& stored, Target kind) const {
    StateDict targets;
    for (const auto& item : stored) {
      const at::IntArrayRef shape = item.value().sizes();
      at::Tensor target;
      if (kind == Target::strided) {
        target = torch::zeros({shape[1], shape[0]}, options()).t();
      } else {
        target = torch::zeros(shape, options(kind == Target::converted ? at::kDouble : at::kFloat));
      }
      targets.insert(item.key(), target);
    }
    return targets;
  }

  static bool is_old_or_new(const at::Tensor& target, const at::Tensor& stored) {
    const at::Tensor found = target.cpu().to(at::kFloat);
    return (found.eq(stored) | found.eq(0)).all().item<bool>();
  }
};

constexpr Target kTargets[] = {Target::as_stored, Target::converted, Target::strided};

TEST_P(CheckedLoading, FillsAllKindsOfTargets) {
  const StateDict stored = large_state();
  for (const char* shard_size : {"10GB", "5MB"}) {
    const TempFolder folder;
    save_model(stored, folder.path(), {.max_shard_size = shard_size});
    for (const Target kind : kTargets) {
      const StateDict targets = targets_for(stored, kind);
      load_checkpoint_in_model(targets, folder.path());
      for (const auto& item : stored) {
        const at::Tensor found = targets[item.key()].cpu().to(at::kFloat);
        EXPECT_TRUE(torch::equal(found, item.value())) << item.key();
      }
    }
  }
}

TEST_P(CheckedLoading, NoDamagedValueGetsIntoAModel) {
  const StateDict stored = large_state();
  std::mt19937 generator(random_seed());
  for (const bool is_sharded : {false, true}) {
    const TempFolder folder;
    const auto saved =
        save_model(stored, folder.path(), {.max_shard_size = is_sharded ? "5MB" : "10GB"});
    for (const Target kind : kTargets) {
      for (int i = 0; i < 4; ++i) {
        const std::string& name = saved.files[generator() % saved.files.size()];
        const std::string path = folder.path(name);
        const std::string content = TempFolder::content_of(path);
        flip_byte(path, i == 0 ? content.size() - 1 : generator() % content.size());
        const StateDict targets = targets_for(stored, kind);
        const std::string error =
            whole_error_of([&] { load_checkpoint_in_model(targets, folder.path()); });
        EXPECT_TRUE(contains(error, name + " is damaged in bytes"));
        EXPECT_TRUE(contains(whole_error_of([&] {
                               load_checkpoint_in_model(targets, folder.path(), {.strict = false});
                             }),
                             "is damaged"));
        for (const auto& item : stored) {
          EXPECT_TRUE(is_old_or_new(targets[item.key()], item.value())) << item.key();
        }
        folder.write(name, content);
      }
    }
  }
}

TEST_P(CheckedLoading, DamageInTensorsThatTheModelDoesNotHaveIsFound) {
  const TempFolder folder;
  const StateDict stored = large_state();
  save_model(stored, folder.path());
  const std::string path = folder.path("model.safetensors");
  StateDict few;
  few.insert("t0", torch::zeros(stored["t0"].sizes(), options()));
  EXPECT_NO_THROW(load_checkpoint_in_model(few, path, {.strict = false}));
  flip_byte(path, TempFolder::content_of(path).size() / 2);
  const std::string error =
      whole_error_of([&] { load_checkpoint_in_model(few, path, {.strict = false}); });
  EXPECT_TRUE(contains(error, "is damaged in bytes"));
  EXPECT_TRUE(contains(error, "This was found while the model was filled"));
}

TEST_P(CheckedLoading, DamageInTheHeaderLeavesTheModelUnchanged) {
  const TempFolder folder;
  const StateDict stored = large_state();
  save_model(stored, folder.path());
  flip_byte(folder.path("model.safetensors"), 200);
  const StateDict targets = targets_for(stored, Target::as_stored);
  const std::string error =
      whole_error_of([&] { load_checkpoint_in_model(targets, folder.path()); });
  EXPECT_TRUE(contains(error, "is damaged in bytes 0 to 1048575"));
  EXPECT_FALSE(error.find("This was found while") != std::string::npos);
  for (const auto& item : targets) EXPECT_TRUE(item.value().eq(0).all().item<bool>());
}

ON_EVERY_DEVICE(CheckedLoading);

TEST(ModelWithChecksums, AMissingFileSaysSo) {
  const TempFolder folder;
  const auto saved = save_model(net_of_layers(), folder.path(), {.max_shard_size = "2KB"});
  std::filesystem::remove(folder.path(saved.files.front()));
  auto net = net_of_layers();
  EXPECT_TRUE(contains(whole_error_of([&] { load_checkpoint_in_model(net, folder.path()); }),
                       saved.files.front()));
}

TEST(LoadTensors, DamageAnywhereIsAnError) {
  const TempFolder folder;
  StateDict state;
  state.insert("large", torch::randn({1000, 1000}));
  state.insert("small", torch::randn({3}));
  std::mt19937 generator(random_seed());
  for (const bool safe : {true, false}) {
    const std::string name =
        save_model(state, folder.path(), {.safe_serialization = safe}).files.front();
    const std::string content = TempFolder::content_of(folder.path(name));
    const StateDict loaded = load_tensors(folder.path(name));
    EXPECT_TRUE(torch::equal(loaded["large"], state["large"]));
    for (int i = 0; i < 20; ++i) {
      flip_byte(folder.path(name), generator() % content.size());
      EXPECT_TRUE(contains(whole_error_of([&] { load_tensors(folder.path(name)); }),
                           name + " is damaged in bytes"));
      folder.write(name, content);
    }
  }
}

// --- More than the file holds ---------------------------------------------------------------------

// A file of torch.save with a tensor of this many ones that holds a single one.
void write_expanded(const std::string& path, std::vector<int64_t> shape) {
  static const float kOnes[] = {1};
  format::PlainTensor tensor;
  tensor.strides.assign(shape.size(), 0);
  tensor.shape = std::move(shape);
  tensor.storage = std::make_shared<format::PlainStorage>(std::as_bytes(std::span(kOnes)));
  format::PlainDict state;
  state.set("wide", tensor);
  format::AtomicFile file(path);
  format::write_torch_archive(std::move(state), file);
  file.commit();
}

TEST(LoadTensors, ExpandedViewsAreRefusedUnlessAllowed) {
  const TempFolder folder;
  const std::string path = folder.path("wide.pt");
  write_expanded(path, {int64_t{1} << 40});
  std::string error = whole_error_of([&] { load_tensors(path); });
  for (const char* part : {"wide.pt", "'wide' is an expanded view", "the 4 bytes", "4398046511104",
                           "LoadTensorsOptions::allow_expanded"}) {
    EXPECT_TRUE(contains(error, part)) << error;
  }
  // 2^60 bytes fit into no machine.
  write_expanded(path, {int64_t{1} << 30, int64_t{1} << 28});
  error = whole_error_of([&] { load_tensors(path, {.allow_expanded = true}); });
  EXPECT_TRUE(contains(error, "'wide' does not fit into the memory")) << error;
  write_expanded(path, {3, 5});
  EXPECT_TRUE(
      torch::equal(load_tensors(path, {.allow_expanded = true})["wide"], torch::ones({3, 5})));
}

TEST(LoadModel, AnExpandedViewFillsATensorOfItsShape) {
  const TempFolder folder;
  write_expanded(folder.path("wide.pt"), {300, 1000});
  StateDict state;
  state.insert("wide", torch::zeros({300, 1000}));
  load_checkpoint_in_model(state, folder.path("wide.pt"));
  EXPECT_TRUE(torch::equal(state["wide"], torch::ones({300, 1000})));
  StateDict wrong;
  wrong.insert("wide", torch::zeros({3}));
  write_expanded(folder.path("wide.pt"), {int64_t{1} << 40});
  EXPECT_TRUE(contains(
      whole_error_of([&] { load_checkpoint_in_model(wrong, folder.path("wide.pt")); }), "shape"));
}

// The peak memory of this process in bytes since the last reset.
int64_t peak_since_reset() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024 * std::stoll(line.substr(6));
  }
  return 0;
}

TEST(SaveModel, ViewsNeedNoCopiesOfThemselves) {
  if (is_sanitized) GTEST_SKIP() << "sanitizers bring a malloc of their own";
  const TempFolder folder;
  StateDict state;
  const auto numbers = torch::randn({2000, 3000});
  state.insert("turned", numbers.t());
  state.insert("part", numbers.narrow(1, 1, 2000));
  state.insert("wide", torch::full({1}, 7.0F).expand({30, 1'000'000}));  // 120 MB
  for (const bool safe : {true, false}) {
    std::ofstream reset("/proc/self/clear_refs");
    reset << "5" << std::flush;
    if (!reset) GTEST_SKIP() << "the kernel's counter cannot be reset";
    const int64_t before = peak_since_reset();
    save_model(state, folder.path(), {.safe_serialization = safe});
    EXPECT_LT(peak_since_reset() - before, 20 << 20) << safe;
    StateDict loaded;
    for (const auto& item : state) loaded.insert(item.key(), torch::zeros(item.value().sizes()));
    load_checkpoint_in_model(loaded, folder.path());
    for (const auto& item : state) {
      EXPECT_TRUE(torch::equal(loaded[item.key()], item.value())) << item.key() << safe;
    }
  }
}

}  // namespace
