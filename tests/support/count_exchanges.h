// Counts what c10d sends, by watching its operators.
//
//   CountExchanges counted;
//   loss.backward();
//   EXPECT_EQ(counted.bytes_of("allreduce_"), 4 * num_parameters);
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

class CountExchanges {
 public:
  CountExchanges() {
    reset();
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&CountExchanges::on_operator)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
  }
  ~CountExchanges() { at::removeCallback(handle_); }
  CountExchanges(const CountExchanges&) = delete;
  CountExchanges& operator=(const CountExchanges&) = delete;

  void reset() {
    const std::lock_guard lock(counts().mutex);
    counts().exchanges.clear();
  }

  // Counts for one operator, "allreduce_" or "broadcast_", or for all.
  int64_t calls_of(const std::string& name = "") const { return sum(name).calls; }
  int64_t bytes_of(const std::string& name = "") const { return sum(name).bytes; }

 private:
  struct Count {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  struct Counts {
    std::mutex mutex;
    std::map<std::string, Count> exchanges;
  };

  static Counts& counts() {
    static Counts instance;
    return instance;
  }

  static int64_t bytes_in(const c10::IValue& value) {
    if (value.isTensor()) return static_cast<int64_t>(value.toTensor().nbytes());
    int64_t bytes = 0;
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) bytes += bytes_in(tensor);
    }
    return bytes;
  }

  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
    const std::string name = function.name();
    if (!name.starts_with("c10d::")) return nullptr;
    const std::lock_guard lock(counts().mutex);
    Count& count = counts().exchanges[name.substr(6)];
    ++count.calls;
    if (!function.inputs().empty()) count.bytes += bytes_in(function.inputs()[0]);
    return nullptr;
  }

  Count sum(const std::string& name) const {
    const std::lock_guard lock(counts().mutex);
    Count total;
    for (const auto& [operation, count] : counts().exchanges) {
      if (!name.empty() && operation != name) continue;
      total.calls += count.calls;
      total.bytes += count.bytes;
    }
    return total;
  }

  at::CallbackHandle handle_ = 0;
};
