// Rank 0 reads for all processes and sends each its batches. Part of the loader.
//
// In every step each process gets one message: its batch, the end, or rank 0's error. Messages
// carry the number of the loop and of the step. So if a process leaves a loop early, the next loop
// recognises and drops the messages that remain.
//
// The workers of rank 0 make the batches and pack them into messages. The thread of the loop sends
// them, in the order of steps and ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/data/detail/batch_channel.h"
#include "accelerant/data/detail/feed.h"
#include "accelerant/data/detail/packing.h"

namespace accelerant::data::detail {

// Identifies a message among all that a loader sends.
struct MessageNumber {
  int64_t loop = 0;
  int64_t step = 0;
};

[[noreturn]] void refuse_to_dispatch();

// Begins the message of a batch; the caller appends the batch.
PackWriter batch_message(const MessageNumber& number, int64_t units, int64_t samples);

// The end of the line on rank 0.
class BatchSender {
 public:
  BatchSender(std::shared_ptr<BatchLine> line, int64_t loop, int64_t num_processes);
  // Waits until all messages are received. Failures are logged.
  ~BatchSender();
  BatchSender(const BatchSender&) = delete;
  BatchSender& operator=(const BatchSender&) = delete;

  // Sends the messages of one step, by rank; an undefined message means the end. Ignores the one of
  // rank 0.
  void send(const std::vector<at::Tensor>& messages);
  // Tells every rank that is not at the end yet that there are no more batches.
  void send_end();
  // Sends the current exception to the same ranks.
  void send_error();

 private:
  void send_to_rest(const std::function<at::Tensor()>& message);

  std::shared_ptr<BatchLine> line_;
  MessageNumber number_;
  std::vector<bool> at_end_;
};

// The end of the line on the other ranks.
class BatchReceiver {
 public:
  BatchReceiver(std::shared_ptr<BatchLine> line, int64_t loop);

  struct Message {
    PackReader content;
    int64_t units;
    int64_t samples;
  };
  // nullopt at the end. Throws an Error with rank 0's message if rank 0 failed.
  std::optional<Message> receive();

 private:
  std::shared_ptr<BatchLine> line_;
  MessageNumber expected_;
};

template <Packable Batch>
class SendingFeed final : public Feed<Batch> {
 public:
  // `prepare` makes the request; if it throws, all processes get the error.
  SendingFeed(Source<Batch>& source, const std::function<EpochRequest()>& prepare,
              const Transfer& transfer, const Workers& workers, std::shared_ptr<BatchLine> line,
              int64_t loop, int64_t num_processes)
      : num_processes_(num_processes), sender_(std::move(line), loop, num_processes) {
    try {
      auto make = [&transfer, jobs = source.open(prepare()), in_worker = workers.threads > 0,
                   loop]() -> std::function<Parcel()> {
        auto job = jobs();
        if (!job) return {};
        return [&transfer, job = std::move(job), in_worker, loop] {
          return wrap(job(), transfer, in_worker, loop);
        };
      };
      pipeline_.emplace(std::move(make), workers.threads,
                        workers.threads * workers.prefetch * num_processes,
                        use_one_intra_op_thread);
    } catch (...) {
      sender_.send_error();
      throw;
    }
  }

  std::optional<Arriving<Batch>> next() override {
    std::optional<Arriving<Batch>> own;
    std::vector<at::Tensor> messages(static_cast<std::size_t>(num_processes_));
    try {
      own = take_step(messages);
    } catch (...) {
      sender_.send_error();
      throw;
    }
    if (own) {
      sender_.send(messages);
    } else {
      sender_.send_end();
    }
    return own;
  }

 private:
  // The batch of one process: as is for rank 0, as a message for the others.
  struct Parcel {
    std::optional<Arriving<Batch>> own = {};
    at::Tensor message = {};
    int64_t rank = 0;
    int64_t step = 0;
  };

  static Parcel wrap(Loaded<Batch> loaded, const Transfer& transfer, bool in_worker, int64_t loop) {
    Parcel parcel{.rank = loaded.rank, .step = loaded.step};
    if (loaded.rank == 0) {
      Arriving<Batch> item{std::move(loaded)};
      item.arrival = transfer.prepare(item.batch, in_worker);
      parcel.own = std::move(item);
    } else {
      PackWriter writer = batch_message({loop, loaded.step}, loaded.units, loaded.samples);
      pack_into(writer, loaded.batch);
      parcel.message = writer.finish();
    }
    return parcel;
  }

  // Returns rank 0's batch of the next step, and the messages to the other ranks. Rank 0 has a
  // batch in every step.
  std::optional<Arriving<Batch>> take_step(std::vector<at::Tensor>& messages) {
    std::optional<Parcel> first = held_ ? std::exchange(held_, std::nullopt) : pipeline_->next();
    if (!first) return std::nullopt;
    for (int64_t rank = 1; rank < num_processes_; ++rank) {
      held_ = pipeline_->next();
      if (!held_ || held_->step != first->step) break;  // no batches for the other ranks
      messages[static_cast<std::size_t>(held_->rank)] = std::move(held_->message);
      held_.reset();
    }
    return std::move(first->own);
  }

  int64_t num_processes_;
  BatchSender sender_;
  std::optional<OrderedPipeline<Parcel>> pipeline_;
  std::optional<Parcel> held_;  // the first parcel of the next step
};

template <Packable Batch>
class ReceivingFeed final : public Feed<Batch> {
 public:
  ReceivingFeed(const Transfer& transfer, std::shared_ptr<BatchLine> line, int64_t loop)
      : transfer_(transfer), receiver_(std::move(line), loop) {}

  std::optional<Arriving<Batch>> next() override {
    std::optional<BatchReceiver::Message> message = receiver_.receive();
    if (!message) return std::nullopt;
    Arriving<Batch> item{{unpack_from<Batch>(message->content), message->units, message->samples}};
    item.arrival = transfer_.prepare(item.batch, /*made_in_worker=*/false);
    return item;
  }

 private:
  const Transfer& transfer_;
  BatchReceiver receiver_;
};

}  // namespace accelerant::data::detail
