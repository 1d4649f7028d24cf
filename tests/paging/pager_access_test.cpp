// What becomes of code that does not go through operators, and of parameters that leave the pager.
#include <torch/library.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "accelerant/core/error.h"
#include "paging/interception.h"
#include "paging/paged_training.h"
#include "paging/residency.h"
#include "support/expect_error.h"

namespace {

namespace nn = torch::nn;
using accelerant::paging::Access;
using accelerant::paging::is_paged;
using accelerant::paging::Pager;
using accelerant::paging::Residency;

class PagerAccess : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    torch::manual_seed(5);
    layer = nn::Linear(8, 8);
    layer->to(device());
    values = layer->weight.detach().clone();
  }

  // A pager that frees memory after each operator.
  std::unique_ptr<Pager> frugal_pager() {
    return page(*layer, device(), {.budget_in_units = 0, .prefetch = 0});
  }

  nn::Linear layer{nullptr};
  at::Tensor values;
};
ON_EVERY_DEVICE(PagerAccess);

std::string message_of(const std::function<void()>& access) {
  try {
    access();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_P(PagerAccess, ReadingAnAbsentAddressSaysWhatToDo) {
  const auto pager = frugal_pager();
  const at::Tensor& weight = layer->weight;
  const std::vector<std::function<void()>> accesses = {
      [&] { weight.const_data_ptr(); },
      [&] { weight.mutable_data_ptr(); },
      [&] { weight.data_ptr(); },
      [&] { weight.data_ptr<float>(); },
      [&] { weight.const_data_ptr<float>(); },
      [&] { static_cast<void>(weight.storage().data()); },
      [&] { static_cast<void>(weight.view({64}).data_ptr<float>()); },
      [&] { static_cast<void>(weight.accessor<float, 2>()); },
  };
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const std::string message = message_of(accesses[i]);
    if (i + 1 == accesses.size() && on_cuda()) continue;  // accessors are for the CPU
    EXPECT_TRUE(contains(message, "\"root.weight\"")) << i;
    EXPECT_TRUE(contains(message, "align_module_device")) << i;
  }
}

TEST_P(PagerAccess, OperatorsBringTheMemoryIn) {
  const auto pager = frugal_pager();
  const at::Tensor& weight = layer->weight;
  EXPECT_TRUE(torch::equal(weight, values));
  EXPECT_TRUE(torch::equal(weight.data(), values));
  EXPECT_TRUE(torch::equal(weight.detach(), values));
  EXPECT_TRUE(torch::equal(weight.clone(), values));
  EXPECT_TRUE(torch::equal(weight.to(at::kDouble), values.to(at::kDouble)));
  EXPECT_EQ(weight[2][3].item<float>(), values[2][3].item<float>());
  std::ostringstream plain;
  std::ostringstream paged;
  plain << values;
  paged << weight.detach();
  EXPECT_EQ(plain.str(), paged.str());
}

TEST_P(PagerAccess, ViewsAndFormsNeedNoMemory) {
  const auto pager = frugal_pager();
  const at::Tensor& weight = layer->weight;
  const at::Tensor view = weight.t().narrow(0, 1, 3).as_strided({2, 2}, {1, 8}, 5).unsqueeze(0);
  EXPECT_TRUE(is_paged(view));
  EXPECT_FALSE(is_paged(torch::zeros_like(weight)));
  EXPECT_FALSE(is_paged(weight.new_empty({3})));
  EXPECT_EQ(weight.numel(), 64);
  EXPECT_THROW(weight.narrow(0, 7, 3), c10::Error);
  EXPECT_EQ(pager->statistics().fetches, 0U);
  EXPECT_TRUE(
      torch::equal(view, values.t().narrow(0, 1, 3).as_strided({2, 2}, {1, 8}, 5).unsqueeze(0)));
}

TEST_P(PagerAccess, ResultsOfComputationsAreOrdinary) {
  const auto pager = frugal_pager();
  const auto y = layer(torch::randn({2, 8}, options()));
  y.sum().backward();
  EXPECT_FALSE(is_paged(y));
  EXPECT_FALSE(is_paged(layer->weight.grad()));
  EXPECT_FALSE(is_paged(layer->weight.clone()));
  EXPECT_TRUE(is_paged(layer->weight));
}

// --- Residency ------------------------------------------------------------------------------------

TEST_P(PagerAccess, AResidencyKeepsMemoryAtItsPlace) {
  const auto pager = frugal_pager();
  const void* address = nullptr;
  {
    const Residency residency({layer->weight});
    address = layer->weight.const_data_ptr();
    layer->weight.sum();
    layer->bias.sum();
    EXPECT_EQ(layer->weight.const_data_ptr(), address);
    if (!on_cuda()) {
      EXPECT_EQ(std::memcmp(address, values.const_data_ptr(), values.nbytes()), 0);
    }
  }
  EXPECT_THROW(layer->weight.const_data_ptr(), c10::Error);
}

TEST_P(PagerAccess, AResidencyForWritingStoresWhatWasWritten) {
  const auto pager = frugal_pager();
  {
    const Residency residency({layer->weight}, Access::write);
    const auto raw = torch::from_blob(layer->weight.mutable_data_ptr(), {64}, options());
    raw.fill_(4);
    pager->evict_all();  // not what is held
    raw.fill_(5);        // stored, too
  }
  EXPECT_TRUE(torch::equal(layer->weight, torch::full({8, 8}, 5.F, options())));
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);
}

TEST_P(PagerAccess, AResidencyEndsOnEveryPath) {
  const auto pager = frugal_pager();
  try {
    const Residency residency(*layer);
    throw std::runtime_error("stop");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);
  EXPECT_NO_THROW(pager->detach());
}

TEST_P(PagerAccess, AResidencyIgnoresOrdinaryTensors) {
  const Residency residency({values, at::Tensor()});
  EXPECT_NE(values.const_data_ptr(), nullptr);
}

TEST_P(PagerAccess, APagerInUseCannotBeDetached) {
  const auto pager = frugal_pager();
  const Residency residency(*layer);
  EXPECT_TRUE(contains(whole_error_of([&] { pager->detach(); }), "in use"));
  EXPECT_TRUE(torch::equal(layer->weight, values));
}

TEST_P(PagerAccess, CustomFunctionsSeeOrdinaryOperators) {
  struct Multiply : torch::autograd::Function<Multiply> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                              const at::Tensor& weight) {
      context->save_for_backward({x, weight});
      return x.mm(weight);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      const auto saved = context->get_saved_variables();
      return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
    }
  };
  const auto x = torch::randn({8, 8}, options());
  const auto pager = frugal_pager();
  Multiply::apply(x, layer->weight).sum().backward();
  EXPECT_TRUE(torch::equal(layer->weight.grad(), x.t().mm(torch::ones({8, 8}, options()))));
}

TEST_P(PagerAccess, CustomFunctionsThatReadAddressesNeedAResidency) {
  struct Addresses : torch::autograd::Function<Addresses> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& weight) {
      static_cast<void>(weight.const_data_ptr());
      return weight.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   torch::autograd::variable_list gradients) {
      return gradients;
    }
  };
  const auto pager = frugal_pager();
  EXPECT_TRUE(
      contains(message_of([&] { Addresses::apply(layer->weight); }), "align_module_device"));
  const Residency residency({layer->weight});
  EXPECT_TRUE(torch::equal(Addresses::apply(layer->weight), values));
}

// It reads addresses of memory on the CPU.
TEST_P(PagerAccess, SavingByTorchNeedsAResidency) {
  const auto pager = frugal_pager();
  if (!on_cuda()) {
    std::ostringstream absent;
    EXPECT_TRUE(
        contains(message_of([&] { torch::save(layer->weight, absent); }), "align_module_device"));
  }
  std::stringstream saved;
  {
    const Residency residency(*layer);
    torch::save(layer->weight, saved);
  }
  at::Tensor loaded;
  torch::load(loaded, saved);
  EXPECT_FALSE(is_paged(loaded));
  EXPECT_TRUE(torch::equal(loaded, values));
}

// They change them without saying so.
TEST_P(PagerAccess, RunningStatisticsOfABatchNormAreWrittenTo) {
  const auto mean = torch::zeros({8}, options());
  const auto variance = torch::ones({8}, options());
  const auto paged_mean = mean.clone();
  const auto paged_variance = variance.clone();
  Pager pager(
      {{.name = "statistics", .parameters = {{"mean", paged_mean}, {"variance", paged_variance}}}},
      {.device = device(), .budget = 0, .zero_copy = false});
  const auto normalise = [&](const at::Tensor& m, const at::Tensor& v, bool trains) {
    const auto x = torch::arange(64, options()).view({8, 8});
    return torch::batch_norm(x, {}, {}, m, v, trains, 0.1, 1e-5, /*cudnn_enabled=*/true);
  };
  for (const bool trains : {true, true, false}) {
    EXPECT_TRUE(torch::equal(normalise(mean, variance, trains),
                             normalise(paged_mean, paged_variance, trains)));
  }
  EXPECT_TRUE(torch::equal(mean, paged_mean));
  EXPECT_TRUE(torch::equal(variance, paged_variance));
}

TEST_P(PagerAccess, CollectivesNeedAResidency) {
  const auto pager = frugal_pager();
  const auto all_reduce =
      c10::Dispatcher::singleton().findSchema({"_c10d_functional::all_reduce", ""});
  ASSERT_TRUE(all_reduce.has_value());
  torch::jit::Stack arguments{layer->weight, std::string("sum"), std::string("no such group")};
  EXPECT_TRUE(contains(whole_error_of([&] { all_reduce->callBoxed(arguments); }), "collective"));
  EXPECT_EQ(pager->statistics().fetches, 0U);
}

// --- Attaching ------------------------------------------------------------------------------------

TEST_P(PagerAccess, TensorsThatShareMemoryAreRefused) {
  const auto alias = layer->weight.detach();
  const std::string message = whole_error_of([&] { frugal_pager(); });
  EXPECT_TRUE(contains(message, "\"root.weight\""));
  EXPECT_TRUE(contains(message, "1 other tensors"));
  EXPECT_FALSE(is_paged(layer->weight));
  EXPECT_TRUE(torch::equal(layer->weight, values));
}

TEST_P(PagerAccess, AParameterHasOnePager) {
  const auto pager = frugal_pager();
  EXPECT_TRUE(contains(whole_error_of([&] { frugal_pager(); }), "paged already"));
  pager->detach();
  EXPECT_NO_THROW(frugal_pager());
}

TEST_P(PagerAccess, MetaParametersNeedASource) {
  const auto empty = std::make_shared<Parts>();
  empty->add("weight", torch::empty({4, 4}, at::kMeta));
  EXPECT_TRUE(contains(whole_error_of([&] { page(*empty, device(), {}); }), "source"));
}

TEST_P(PagerAccess, RepeatedNamesOfUnitsAreRefused) {
  const std::vector<accelerant::paging::UnitPlan> units(2, {.name = "twice"});
  EXPECT_TRUE(contains(whole_error_of([&] { Pager pager(units); }), "\"twice\""));
}

TEST_P(PagerAccess, OptionsAreChecked) {
  EXPECT_TRUE(contains(whole_error_of([&] { page(*layer, device(), {.prefetch = -1}); }), "-1"));
  EXPECT_TRUE(contains(whole_error_of([&] { page(*layer, at::Device(at::kXPU, 0), {}); }), "xpu"));
}

// The start-up check of the dispatch key succeeded, or no pager could be made.
TEST_P(PagerAccess, TheKeyReachesTheOperatorsOfThisLibtorch) {
  EXPECT_NO_THROW(accelerant::paging::start_interception());
  EXPECT_TRUE(c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(
      accelerant::paging::paging_key));
}

// In a process of its own, which has not used the key yet.
TEST(PagerKeyDeathTest, AKeyThatAnotherLibraryHandlesIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        torch::Library other(torch::Library::IMPL, "_", accelerant::paging::paging_key, __FILE__,
                             __LINE__);
        other.fallback(torch::CppFunction::makeFallthrough());
        nn::Linear layer(8, 8);
        const std::string message =
            message_of([&] { page(*layer, at::kCPU, {.budget_in_units = 0}); });
        std::fputs(message.c_str(), stderr);
        const bool is_ordinary = !is_paged(layer->weight);
        std::_Exit(is_ordinary ? 0 : 1);
      },
      testing::ExitedWithCode(0), "another user of that key .libtorch [0-9]+");
}

// --- Leaving --------------------------------------------------------------------------------------

TEST_P(PagerAccess, ReplacedParametersAreFound) {
  const auto pager = frugal_pager();
  EXPECT_NO_THROW(pager->verify());
  layer->weight.set_data(torch::ones({8, 8}, options()));
  const std::string message = whole_error_of([&] { pager->verify(); });
  EXPECT_TRUE(contains(message, "\"root.weight\""));
  EXPECT_TRUE(contains(message, "undo_offload()"));
  EXPECT_FALSE(contains(message, "root.bias"));
  EXPECT_THROW(static_cast<void>(pager->begin("train")), accelerant::Error);
  pager->detach();
  EXPECT_TRUE(torch::equal(layer->weight, torch::ones({8, 8}, options())));
}

TEST_P(PagerAccess, SetReplacesMemoryToo) {
  const auto pager = frugal_pager();
  {
    const at::NoGradGuard no_grad;
    layer->bias.set_(torch::ones({8}, options()));
  }
  EXPECT_TRUE(contains(whole_error_of([&] { pager->verify(); }), "\"root.bias\""));
}

TEST_P(PagerAccess, VectorToParametersReplacesMemoryToo) {
  const auto pager = frugal_pager();
  const at::Tensor all = nn::utils::parameters_to_vector(layer->parameters()).detach();
  EXPECT_NO_THROW(pager->verify());
  nn::utils::vector_to_parameters(all + 1, layer->parameters());
  const std::string message = whole_error_of([&] { pager->verify(); });
  EXPECT_TRUE(contains(message, "\"root.weight\""));
  EXPECT_TRUE(contains(message, "\"root.bias\""));
  EXPECT_TRUE(torch::equal(layer->weight, values + 1));
}

TEST_P(PagerAccess, ConversionsOfTheModule) {
  const auto pager = frugal_pager();
  layer->to(device());  // the same: stays
  layer->to(at::kFloat);
  EXPECT_NO_THROW(pager->verify());
  layer->to(at::kDouble);
  EXPECT_TRUE(contains(whole_error_of([&] { pager->verify(); }), "Module::to()"));
  EXPECT_TRUE(torch::equal(layer->weight, values.to(at::kDouble)));
}

TEST_P(PagerAccess, ParametersDoNotChangeTheirSize) {
  const auto pager = frugal_pager();
  const at::NoGradGuard no_grad;
  EXPECT_THROW(layer->weight.resize_({100, 100}), c10::Error);
  EXPECT_TRUE(torch::equal(layer->weight.cpu(), values.cpu()));
}

TEST_P(PagerAccess, DetachingGivesOrdinaryParametersBack) {
  const auto pager = frugal_pager();
  const auto view = layer->weight.t();
  {
    const at::NoGradGuard no_grad;
    layer->weight.add_(1);
  }
  pager->detach();
  EXPECT_FALSE(is_paged(layer->weight));
  EXPECT_TRUE(layer->weight.requires_grad());
  EXPECT_TRUE(torch::equal(layer->weight, values + 1));
  EXPECT_TRUE(torch::equal(view, (values + 1).t()));  // follows its parameter
  layer->weight.data().fill_(2);
  EXPECT_EQ(view[0][0].item<float>(), 2);
  EXPECT_NO_THROW(pager->detach());
  EXPECT_TRUE(pager->layouts().empty());
}

TEST_P(PagerAccess, TheEndOfAPagerDetaches) {
  { const auto pager = frugal_pager(); }
  EXPECT_FALSE(is_paged(layer->weight));
  EXPECT_TRUE(torch::equal(layer->weight, values));
}

TEST_P(PagerAccess, ParametersMoveToTheDeviceAndBack) {
  nn::Linear other(8, 8);
  const auto before = other->weight.detach().clone();
  other->weight.mutable_grad() = torch::ones({8, 8});
  {
    const auto pager = page(*other, device(), {.budget_in_units = 1});
    EXPECT_EQ(other->weight.device(), device());
    EXPECT_EQ(other->weight.grad().device(), device());
    EXPECT_TRUE(torch::equal(other->weight.cpu(), before));
    other(torch::ones({1, 8}, options())).sum().backward();
    EXPECT_TRUE(torch::equal(other->weight.grad().cpu(), torch::full({8, 8}, 2.F)));
  }
  EXPECT_TRUE(other->weight.is_cpu());
  EXPECT_TRUE(torch::equal(other->weight, before));
}

TEST_P(PagerAccess, ChangesOfSavedWeightsAreNoticed) {
  const auto pager = frugal_pager();
  const auto loss = layer(torch::ones({1, 8}, options()).requires_grad_()).square().sum();
  layer->weight.sum();  // comes and goes, which is not a change
  {
    const at::NoGradGuard no_grad;
    layer->weight.add_(1);
  }
  EXPECT_TRUE(contains(message_of([&] { loss.backward(); }), "modified by an inplace operation"));
}

}  // namespace
