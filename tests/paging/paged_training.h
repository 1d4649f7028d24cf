// Trains a small model twice, as it is and with paged parameters, and compares all results bit for
// bit.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paging/pager.h"
#include "support/on_device.h"

// A model and what one step of its training computes. `loss` is called with 0, 1, 2...
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(int step)> loss;
};
using MakeSubject = std::function<Subject(const at::TensorOptions& options)>;

// A module that registers what a scenario needs, without a class of its own.
struct Parts : torch::nn::Module {
  template <class Holder>
  Holder add(const std::string& name, Holder holder) {
    return register_module(name, std::move(holder));
  }
  at::Tensor add(const std::string& name, const at::Tensor& parameter) {
    return register_parameter(name, parameter);
  }
};

// One unit for each module that has parameters of its own.
inline std::vector<accelerant::paging::UnitPlan> unit_per_module(const torch::nn::Module& module) {
  std::vector<accelerant::paging::UnitPlan> units;
  for (const auto& item : module.named_modules("root")) {
    accelerant::paging::UnitPlan unit{.name = item.key()};
    for (const auto& own : item.value()->named_parameters(/*recurse=*/false)) {
      unit.parameters.push_back({.name = item.key() + "." + own.key(), .parameter = own.value()});
    }
    if (!unit.parameters.empty()) units.push_back(std::move(unit));
  }
  return units;
}

// How parameters are paged. Budgets are counted in units of the largest size.
struct Paging {
  int budget_in_units = 0;
  int prefetch = 1;
  bool has_phases = false;
  bool zero_copy = false;
};

inline std::string text_of(const Paging& paging) {
  return "budget of " + std::to_string(paging.budget_in_units) + " units, prefetch " +
         std::to_string(paging.prefetch) + (paging.has_phases ? ", phases" : "") +
         (paging.zero_copy ? ", zero copy" : "");
}

// Budgets of no unit (memory is freed after each operator), one, two and three.
inline std::vector<Paging> every_paging() {
  return {{.budget_in_units = 0},
          {.budget_in_units = 1},
          {.budget_in_units = 2, .has_phases = true},
          {.budget_in_units = 3, .prefetch = 2, .has_phases = true},
          {.budget_in_units = 3, .prefetch = 0},
          {.budget_in_units = 1, .zero_copy = true}};
}

inline std::unique_ptr<accelerant::paging::Pager> page(torch::nn::Module& module,
                                                       c10::Device device, const Paging& paging) {
  using accelerant::paging::Pager;
  const auto units = unit_per_module(module);
  uint64_t largest = 0;
  for (const auto& unit : units) {
    uint64_t bytes = 0;
    for (const auto& named : unit.parameters) bytes += (named.parameter.nbytes() + 511) / 512 * 512;
    largest = std::max(largest, bytes);
  }
  return std::make_unique<Pager>(
      units, accelerant::paging::PagerOptions{
                 .device = device,
                 .budget = largest * static_cast<uint64_t>(paging.budget_in_units),
                 .prefetch = paging.prefetch,
                 .zero_copy = paging.zero_copy});
}

using Results = std::vector<std::pair<std::string, at::Tensor>>;

inline void expect_same(const Results& plain, const Results& paged) {
  ASSERT_EQ(plain.size(), paged.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].first, paged[i].first);
    EXPECT_EQ(plain[i].second.defined(), paged[i].second.defined()) << plain[i].first;
    if (!plain[i].second.defined() || !paged[i].second.defined()) continue;
    EXPECT_TRUE(torch::equal(plain[i].second, paged[i].second)) << plain[i].first;
  }
}

inline at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(at::kCPU).clone() : at::Tensor();
}

inline Results train(const MakeSubject& make, const at::TensorOptions& options,
                     const std::optional<Paging>& paging, int steps = 3) {
  torch::manual_seed(7);
  Subject subject = make(options);
  torch::optim::AdamW optimizer(subject.module->parameters(), 1e-2);
  std::unique_ptr<accelerant::paging::Pager> pager;
  if (paging) pager = page(*subject.module, options.device(), *paging);

  Results results;
  for (int step = 0; step < steps; ++step) {
    const std::string at_step = " at step " + std::to_string(step);
    std::optional<accelerant::paging::Pager::Iteration> iteration;
    if (pager && paging->has_phases) iteration.emplace(pager->begin("train"));
    torch::manual_seed(100 + step);
    optimizer.zero_grad();
    const at::Tensor loss = subject.loss(step);
    if (loss.requires_grad()) loss.backward();
    results.emplace_back("loss" + at_step, on_host(loss));
    for (const auto& item : subject.module->named_parameters()) {
      results.emplace_back("gradient of " + item.key() + at_step, on_host(item.value().grad()));
    }
    optimizer.step();
  }
  for (const auto& item : subject.module->named_parameters()) {
    results.emplace_back(item.key(), on_host(item.value()));
  }
  for (const auto& item : subject.module->named_buffers()) {
    results.emplace_back(item.key(), on_host(item.value()));
  }
  if (pager) {
    pager->verify();
    EXPECT_GT(pager->statistics().fetches + pager->statistics().lent_bytes, 0U);
    pager->detach();
  }
  for (const auto& item : subject.module->named_parameters()) {
    const at::Tensor& parameter = item.value();
    results.emplace_back(item.key() + " after all", on_host(parameter));
    EXPECT_NE(parameter.const_data_ptr(), nullptr);
    EXPECT_EQ(parameter.device(), options.device());
  }
  return results;
}

// Strict determinism: otherwise two plain runs differ on a GPU.
class PagedTraining : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicCuDNN(true);
  }
  void TearDown() override {
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setDeterministicCuDNN(false);
  }

  void expect_same_training(const MakeSubject& make) const {
    const Results plain = train(make, options(), std::nullopt);
    for (const Paging& paging : every_paging()) {
      SCOPED_TRACE(text_of(paging));
      expect_same(plain, train(make, options(), paging));
    }
  }
};
