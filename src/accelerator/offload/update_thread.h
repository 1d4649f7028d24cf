// A thread that updates parameters while backward computes further gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace accelerant::detail {

class UpdateThread {
 public:
  using Update = std::function<void(const at::Tensor& parameter)>;

  UpdateThread() = default;
  ~UpdateThread();
  UpdateThread(const UpdateThread&) = delete;
  UpdateThread& operator=(const UpdateThread&) = delete;

  // What is called for each parameter from now on. Starts the thread.
  void begin(Update update);

  // Any thread may call it. The gradient is there once the event has happened; empty: now.
  void add(at::Tensor parameter, std::optional<c10::Event> gradient_is_there);

  // Returns once all are updated, or throws what one of them threw. Calls `use` for each that is
  // updated, in this thread, as soon as it is.
  void finish(const Update& use);

 private:
  struct Job {
    at::Tensor parameter = {};
    std::optional<c10::Event> gradient_is_there = std::nullopt;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable has_changed_;
  Update update_;
  std::deque<Job> jobs_;
  std::deque<at::Tensor> updated_;  // finish() has not used them yet
  bool is_busy_ = false;
  bool must_end_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace accelerant::detail
